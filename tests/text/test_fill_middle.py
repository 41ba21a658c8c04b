"""A prompt with a suffix, in the form of each family: the tokens its own tooling makes."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tokenizers import AddedToken, Tokenizer, normalizers, processors
from transformers import PreTrainedTokenizerFast

from cadence.config.engine_config import TokenizerConfig
from cadence.config.reference import ModelFiles
from cadence.core.errors import InvalidRequestError
from cadence.text.hf_directory import load_tokenizer
from cadence.text.service.fill_middle import fill_ends, fill_prompt
from cadence.text.service.text_service import TextService
from tests.helpers.tiny_tokenizers import byte_fallback, byte_level, save

PROMPT, SUFFIX = "code(x) == ", "  with  tokens\n"
CODE_LLAMA = ("▁<PRE>", "▁<SUF>", "▁<MID>", "▁<EOT>")
CODESTRAL = ("[SUFFIX]", "[PREFIX]")
BYTE_LEVEL = {
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>", "<file_sep>"): "{0}{prompt}{1}{suffix}{2}",
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|fim_pad|>"): "{0}{prompt}{1}{suffix}{2}",
    ("<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"): "{0}{prompt}{1}{suffix}{2}",
    ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"): "{0}{prompt}{1}{suffix}{2}",
    ("<[fim-prefix]>", "<[fim-suffix]>", "<[fim-middle]>"): "{1}{suffix}{0}{prompt}{2}",
    CODESTRAL: "{0}{suffix}{1}{prompt}",
}


def saved(tokenizer: Tokenizer, marks: tuple[str, ...], directory: Path) -> Path:
    """With control tokens, and with a first token before every prompt."""
    tokenizer.add_special_tokens([AddedToken(mark, special=True, normalized=False) for mark in marks])
    first = [("<s>", tokenizer.token_to_id("<s>"))]
    tokenizer.post_processor = processors.TemplateProcessing("<s> $A", "<s> $A $B", first)
    return save(tokenizer, directory)


def filled(directory: Path, prompt: str, suffix: str, add_special_tokens: bool = True) -> list[int]:
    config = TokenizerConfig(ModelFiles("fim", directory, None), skip=False, chat_template="")

    async def run() -> list[int]:
        texts = TextService(load_tokenizer(directory), config, max_model_len=8192)
        try:
            return await fill_prompt(prompt, suffix, texts, add_special_tokens)
        finally:
            await texts.close()

    return asyncio.run(run())


@pytest.mark.parametrize("marks", BYTE_LEVEL)
def test_tokens_are_those_of_the_text_with_its_marks(marks: tuple[str, ...], tmp_path: Path) -> None:
    directory = saved(byte_level(), marks, tmp_path)
    reference = PreTrainedTokenizerFast(tokenizer_file=str(directory / "tokenizer.json"))
    for prompt, suffix in ((PROMPT, SUFFIX), ("", "):\n"), (" a " * 20_000, "b" * 60_000)):  # long ones, elsewhere
        text = BYTE_LEVEL[marks].format(*marks, prompt=prompt, suffix=suffix)
        assert filled(directory, prompt, suffix) == reference.encode(text)
        assert filled(directory, prompt, suffix, False) == reference.encode(text, add_special_tokens=False)


@pytest.mark.parametrize("suffix", [SUFFIX, "return x", "\n\tx", "größe"])
def test_a_suffix_goes_on_without_the_space_that_begins_a_text(suffix: str, tmp_path: Path) -> None:
    """As those who trained Code Llama and Codestral have it: a prompt begins as texts do, a suffix does not."""
    made = byte_fallback().to_str()  # training it again would give another
    plain = Tokenizer.from_str(made)
    before = plain.encode(PROMPT, add_special_tokens=False).ids
    assert plain.id_to_token(before[0]).startswith("▁")
    plain.normalizer = normalizers.Replace(" ", "▁")
    after = plain.encode(suffix, add_special_tokens=False).ids
    for marks, form in ((CODE_LLAMA, "<s> 0 prompt 1 suffix 2"), (CODESTRAL, "<s> 0 suffix 1 prompt")):
        directory = saved(Tokenizer.from_str(made), marks, tmp_path / marks[0].strip("▁<[]>"))
        named = {"prompt": before, "suffix": after, "<s>": [plain.token_to_id("<s>")]}
        to_id = load_tokenizer(directory).backend.token_to_id
        named |= {str(number): [to_id(mark)] for number, mark in enumerate(marks)}
        assert filled(directory, PROMPT, suffix) == [token for name in form.split() for token in named[name]]


def test_what_ends_it_is_known(tmp_path: Path) -> None:
    for number, (made, marks) in enumerate(((byte_fallback(), CODE_LLAMA), (byte_level(), next(iter(BYTE_LEVEL))))):
        tokenizer = load_tokenizer(saved(made, marks, tmp_path / str(number)))
        assert [tokenizer.backend.id_to_token(token_id) for token_id in fill_ends(tokenizer)] == [*marks]


def test_a_model_without_such_tokens_says_so(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError, match="it can only continue") as error:
        filled(saved(byte_level(), ("<fim_prefix>", "<fim_suffix>"), tmp_path), PROMPT, SUFFIX)
    assert error.value.field == "suffix"

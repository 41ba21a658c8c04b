"""The tokenizer gives what transformers' fast tokenizer gives on the same files."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import models, processors

from cadence.config.reference import ModelFiles
from cadence.core.errors import InvalidRequestError, TokenizerError
from cadence.text.hf_directory import load_tokenizer
from cadence.text.load import tokenizer_for
from cadence.text.tokenizer import SpecialTokens, Tokenizer
from tests.helpers import tiny_tokenizers

TEXTS = [
    "",
    " ",
    "Hello, world!",
    "  two spaces, then  two more  ",
    "東京 🦊 e\u0301 👩\u200d👩\u200d👧 café",
    "a<|turn|>b <s></s> <tool> c",
    "it 's . not , done ?",
    "\n\n\ttabs\r\n",
]


def oracle(directory: Path) -> Any:
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast.from_pretrained(directory)


@pytest.fixture(params=tiny_tokenizers.KINDS)
def directory(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return tiny_tokenizers.save(tiny_tokenizers.KINDS[request.param](), tmp_path)


def test_encode_and_decode_equal_transformers(directory: Path) -> None:
    ours, theirs = load_tokenizer(directory), oracle(directory)
    for text in TEXTS:
        for special in (True, False):
            ids = ours.encode(text, add_special_tokens=special)
            assert ids == theirs.encode(text, add_special_tokens=special)
        for skip in (True, False):
            assert ours.decode(ids, skip_special_tokens=skip) == theirs.decode(ids, skip_special_tokens=skip)
    assert ours.encode_batch(TEXTS) == [ours.encode(text) for text in TEXTS]
    assert ours(TEXTS)["input_ids"] == theirs(TEXTS)["input_ids"]
    assert ours("Hello")["attention_mask"] == theirs("Hello")["attention_mask"]


def test_vocabulary_equals_transformers(directory: Path) -> None:
    ours, theirs = load_tokenizer(directory), oracle(directory)
    assert (ours.vocab_size, len(ours)) == (theirs.vocab_size, len(theirs))
    assert ours.get_vocab() == theirs.get_vocab()
    assert ours.get_added_vocab() == theirs.get_added_vocab()
    assert ours.max_token_id == max(theirs.get_vocab().values())
    assert (ours.bos_token_id, ours.eos_token_id) == (theirs.bos_token_id, theirs.eos_token_id)
    assert (ours.pad_token, ours.pad_token_id, ours.unk_token_id) == (None, None, theirs.unk_token_id)
    assert set(ours.all_special_ids) == set(theirs.all_special_ids)
    ids = ours.encode("Hello <s> there")
    assert ours.convert_ids_to_tokens(ids) == theirs.convert_ids_to_tokens(ids)
    assert ours.convert_ids_to_tokens(ids, True) == theirs.convert_ids_to_tokens(ids, skip_special_tokens=True)
    assert ours.convert_ids_to_tokens(3) == theirs.convert_ids_to_tokens(3)
    tokens = ["<s>", "no such token"]
    assert ours.convert_tokens_to_ids(tokens) == theirs.convert_tokens_to_ids(tokens)
    assert ours.tokenize("Hello") == theirs.tokenize("Hello")


@pytest.fixture(scope="module")
def byte_level_pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Tokenizer, Any]:
    directory = tiny_tokenizers.save(tiny_tokenizers.byte_level(), tmp_path_factory.mktemp("byte_level"))
    return load_tokenizer(directory), oracle(directory)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text(st.characters(exclude_categories=["Cs"]), max_size=40))
def test_any_text_round_trips(byte_level_pair: tuple[Tokenizer, Any], text: str) -> None:
    ours, theirs = byte_level_pair
    ids = ours.encode(text)
    assert ids == theirs.encode(text)
    assert ours.decode(ids, skip_special_tokens=False) == text


@pytest.mark.parametrize("says", [{"add_bos_token": True}, {"add_bos_token": True, "add_eos_token": True}, {}])
@pytest.mark.parametrize("template", [True, False])
def test_bos_and_eos_as_the_files_say(tmp_path: Path, says: dict[str, bool], template: bool) -> None:
    """Where there is a tokenizer.json, its post-processor decides."""
    backend = tiny_tokenizers.byte_level()
    if template:
        backend.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 2)])
    directory = tiny_tokenizers.save(backend, tmp_path, **says)
    ours, theirs = load_tokenizer(directory), oracle(directory)
    for text in ("", "Hello"):
        assert ours.encode(text) == theirs.encode(text)
        assert ours.encode(text, add_special_tokens=False) == theirs.encode(text, add_special_tokens=False)
    assert (ours.special.add_bos, ours.special.add_eos) == (False, template)


def test_bos_is_added_when_the_parts_promise_it() -> None:
    """Built from parts, as from GGUF: no post-processor, only the promise."""
    special = SpecialTokens(bos_token="<s>", eos_token="</s>", bos_id=1, eos_id=2, add_bos=True)
    ids = Tokenizer(tiny_tokenizers.byte_level(), special, "", 100).encode("Hello")
    assert ids[0] == 1
    assert 2 not in ids


def test_truncation_and_padding_in_the_file_do_not_apply(tmp_path: Path) -> None:
    backend = tiny_tokenizers.byte_level()
    backend.enable_truncation(4)
    backend.enable_padding(length=64)
    ours = load_tokenizer(tiny_tokenizers.save(backend, tmp_path))
    assert ours.decode(ours.encode("a rather long text")) == "a rather long text"


def test_tokens_that_only_the_config_names(tmp_path: Path) -> None:
    backend = tiny_tokenizers.byte_level()
    size = backend.get_vocab_size()
    decoder = {
        str(size): {"content": "<extra>", "special": True, "normalized": False},
        str(size + 1): {"content": "<plain>", "special": False, "normalized": False},
    }
    directory = tiny_tokenizers.save(
        backend, tmp_path, added_tokens_decoder=decoder, pad_token="<pad>", additional_special_tokens=["<extra>"]
    )
    ours, theirs = load_tokenizer(directory), oracle(directory)
    text = "a<extra>b<plain>c<pad>"
    assert ours.encode(text) == theirs.encode(text)
    assert ours.decode(ours.encode(text)) == "ab<plain>c"
    assert theirs.decode(theirs.encode(text), skip_special_tokens=True) == "ab<plain>c"
    assert set(ours.all_special_ids) == set(theirs.all_special_ids)


def test_special_tokens_map_fills_in(tmp_path: Path) -> None:
    tiny_tokenizers.save(tiny_tokenizers.byte_level(), tmp_path)
    (tmp_path / "tokenizer_config.json").unlink()
    (tmp_path / "special_tokens_map.json").write_text(json.dumps({"eos_token": {"content": "</s>", "lstrip": False}}))
    ours = load_tokenizer(tmp_path)
    assert (ours.eos_token, ours.eos_token_id, ours.bos_token_id) == ("</s>", 2, None)


def test_generation_config_names_more_ends(tmp_path: Path) -> None:
    directory = tiny_tokenizers.save(tiny_tokenizers.byte_level(), tmp_path)
    (directory / "generation_config.json").write_text(json.dumps({"eos_token_id": [7, 9]}))
    assert load_tokenizer(directory).eos_token_ids == {2, 7, 9}


@pytest.mark.parametrize("wanted", [True, False])
def test_prefix_space_as_the_config_says(tmp_path: Path, wanted: bool) -> None:
    ours = load_tokenizer(tiny_tokenizers.save(tiny_tokenizers.byte_level(), tmp_path, add_prefix_space=wanted))
    assert ours.decode(ours.encode("Hello")) == (" Hello" if wanted else "Hello")


@pytest.mark.parametrize("kind", ["byte_level", "wordpiece"])
def test_clean_up_spares_bpe(tmp_path: Path, kind: str) -> None:
    directory = tiny_tokenizers.save(tiny_tokenizers.KINDS[kind](), tmp_path, clean_up_tokenization_spaces=True)
    ours, theirs = load_tokenizer(directory), oracle(directory)
    ids = ours.encode("the dog , it 's used ! does n't mind .")
    assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True)


@pytest.mark.parametrize("config", [{}, {"add_bos_token": True, "bos_token": "</s>"}])
def test_vocab_and_merges_without_tokenizer_json(tmp_path: Path, config: dict[str, Any]) -> None:
    backend = tiny_tokenizers.byte_level()
    assert isinstance(backend.model, models.BPE)
    backend.model.save(str(tmp_path))
    roles = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "GPT2Tokenizer", **roles, **config}))
    from transformers import GPT2Tokenizer

    ours, theirs = load_tokenizer(tmp_path), GPT2Tokenizer.from_pretrained(tmp_path)
    for text in TEXTS[:5]:
        assert ours.encode(text) == theirs.encode(text)
        assert ours.decode(ours.encode(text)) == theirs.decode(theirs.encode(text), skip_special_tokens=True)
    assert ours.bos_token_id == theirs.bos_token_id


def test_templates_from_every_place(tmp_path: Path) -> None:
    named = [{"name": "default", "template": "from config"}, {"name": "tool_use", "template": "with tools"}]
    directory = tiny_tokenizers.save(tiny_tokenizers.byte_level(), tmp_path, chat_template=named)
    messages = [{"role": "user", "content": "hi"}]
    tools = [{"type": "function", "function": {"name": "f"}}]
    ours = load_tokenizer(directory)
    assert ours.apply_chat_template(messages, tokenize=False) == "from config"
    assert ours.apply_chat_template(messages, tokenize=False, tools=tools) == "with tools"
    assert ours.apply_chat_template(messages, tokenize=False, chat_template="tool_use") == "with tools"
    assert ours.apply_chat_template(messages, tokenize=False, chat_template="given") == "given"
    assert ours.apply_chat_template(messages) == ours.encode("from config", add_special_tokens=False)
    (directory / "chat_template.jinja").write_text("from file")
    (directory / "additional_chat_templates").mkdir()
    (directory / "additional_chat_templates" / "rag.jinja").write_text("from folder")
    ours = load_tokenizer(directory)
    assert ours.apply_chat_template(messages, tokenize=False) == "from file"
    assert ours.apply_chat_template(messages, tokenize=False, chat_template="rag") == "from folder"


def test_no_template_is_said(tmp_path: Path) -> None:
    ours = load_tokenizer(tiny_tokenizers.save(tiny_tokenizers.byte_level(), tmp_path))
    with pytest.raises(InvalidRequestError, match="no chat template; give one with --chat-template"):
        ours.apply_chat_template([{"role": "user", "content": "hi"}])


def test_the_dispatcher_reads_a_directory(tmp_path: Path) -> None:
    tiny_tokenizers.save(tiny_tokenizers.byte_level(), tmp_path)
    assert tokenizer_for(ModelFiles("tiny", tmp_path, None)).eos_token == "</s>"


def test_bad_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match=r"tokenizer\.json is missing"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{ not json")
    with pytest.raises(TokenizerError, match=r"tokenizer\.json is corrupt"):
        load_tokenizer(tmp_path)
    tiny_tokenizers.save(tiny_tokenizers.byte_level(), tmp_path)
    (tmp_path / "tokenizer_config.json").write_text("[")
    with pytest.raises(TokenizerError, match=r"tokenizer_config\.json: not readable as JSON"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": [{"nome": "x"}]}))
    with pytest.raises(TokenizerError, match=r"tokenizer_config\.json is malformed"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": {"9999": {"content": "<x>"}}}))
    with pytest.raises(TokenizerError, match=r"tokenizer_config\.json.*'<x>' = 9999"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").unlink()
    (tmp_path / "vocab.json").write_text('{"a": 0, "b": 1}')
    (tmp_path / "merges.txt").write_text("#version: 0.2\na b c\n")
    with pytest.raises(TokenizerError, match=r"merges\.txt is corrupt: line 2"):
        load_tokenizer(tmp_path)
    (tmp_path / "merges.txt").write_text("a b\n")
    with pytest.raises(TokenizerError, match=r"vocab\.json and merges\.txt do not fit"):
        load_tokenizer(tmp_path)


def test_bad_input_is_refused(byte_level_pair: tuple[Tokenizer, Any]) -> None:
    ours, _ = byte_level_pair
    with pytest.raises(InvalidRequestError, match="valid text"):
        ours.encode("lone surrogate \ud800")
    with pytest.raises(InvalidRequestError, match="valid text"):
        ours.encode(7)  # type: ignore[arg-type]
    with pytest.raises(InvalidRequestError, match="integers"):
        ours.decode([-1])
    assert ours.decode([10**6]) == ""


def test_the_text_room_needs_neither_torch_nor_transformers() -> None:
    code = "import sys, cadence.text.load, cadence.text.detokenizer, cadence.text.stop, cadence.gguf.tokenizer\n"
    code += "assert not {'torch', 'transformers'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


class PanicException(BaseException):
    """As the package `tokenizers` raises where its code in Rust panics."""


class PanickingBackend:
    def __init__(self, error: BaseException) -> None:
        self._error = error

    def encode(self, *arguments: Any, **options: Any) -> Any:
        raise self._error

    encode_batch = encode_batch_fast = encode


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (PanicException("Onig: retry-limit-in-match over"), InvalidRequestError),
        (PanicException("cannot allocate memory"), MemoryError),
        (TypeError("no text"), InvalidRequestError),
        (KeyboardInterrupt(), KeyboardInterrupt),
    ],
)
def test_a_text_that_the_backend_panics_at_is_refused(
    error: BaseException, expected: type[BaseException], tmp_path: Path
) -> None:
    tokenizer = load_tokenizer(tiny_tokenizers.save(tiny_tokenizers.byte_level(), tmp_path))
    tokenizer.backend = PanickingBackend(error)  # type: ignore[assignment]
    for read in (tokenizer.encode, tokenizer.offsets, lambda text: tokenizer.encode_batch([text])):
        with pytest.raises(expected):
            read("a")

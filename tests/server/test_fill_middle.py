"""`suffix` of /v1/completions over the real engine: a tiny random model with the control tokens of Qwen Coder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from tokenizers import AddedToken, Tokenizer
from transformers import LlamaForCausalLM

from tests.helpers.tiny_models import VOCAB, make_tiny
from tests.server.fakes_chat import openai_client
from tests.server.helpers import ServerProcess

pytestmark = [pytest.mark.engine, pytest.mark.warm]

MARKS = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|fim_pad|>")
PAD = VOCAB + 3
PROMPT, SUFFIX = "the quick brown", " jumps over the lazy dog"
ARRANGED = f"{MARKS[0]}{PROMPT}{MARKS[1]}{SUFFIX}{MARKS[2]}"


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[openai.OpenAI]:
    directory = make_tiny("llama", tmp_path_factory.mktemp("coder"))
    add_marks(directory)
    with ServerProcess(directory, "--dtype", "float32", "--served-model-name", "tiny") as server:
        yield openai_client(server)


def add_marks(directory: Path) -> None:
    path = str(directory / "tokenizer.json")
    tokenizer = Tokenizer.from_file(path)
    tokenizer.add_special_tokens([AddedToken(mark, special=True, normalized=False) for mark in MARKS])
    assert tokenizer.token_to_id(MARKS[-1]) == PAD
    tokenizer.save(path)
    model = LlamaForCausalLM.from_pretrained(directory)
    model.resize_token_embeddings(VOCAB + len(MARKS))
    model.save_pretrained(directory)


def complete(client: openai.OpenAI, prompt: str, extra: Any = None, **fields: Any) -> Any:
    extra = {"return_token_ids": True, **(extra or {})}
    return client.completions.create(
        **{"model": "tiny", "prompt": prompt, "max_tokens": 8, "temperature": 0, **fields}, extra_body=extra
    ).choices[0]


def test_the_model_reads_both_texts_in_the_form_it_was_trained_on(client: openai.OpenAI) -> None:
    filled, arranged = complete(client, PROMPT, suffix=SUFFIX), complete(client, ARRANGED)
    assert (filled.prompt_token_ids, filled.token_ids) == (arranged.prompt_token_ids, arranged.token_ids)
    assert filled.token_ids != complete(client, PROMPT).token_ids


def test_what_it_fills_in_ends_at_control_tokens_of_files(client: openai.OpenAI) -> None:
    """Those of the form are no end of a text, so that its files need not say that they end one."""
    sure: dict[str, Any] = {"logit_bias": {str(PAD): 100.0}}
    filled = complete(client, PROMPT, suffix=SUFFIX, **sure)
    assert (filled.finish_reason, filled.text, filled.stop_reason) == ("stop", "", PAD)
    assert complete(client, ARRANGED, **sure).token_ids == [PAD] * 8
    assert complete(client, PROMPT, suffix=SUFFIX, extra={"ignore_eos": True}, **sure).token_ids == [PAD] * 8


def test_what_would_cut_off_its_tokens_is_refused(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="beside suffix") as error:
        complete(client, PROMPT, suffix=SUFFIX, extra={"truncate_prompt_tokens": 3})
    assert error.value.param == "truncate_prompt_tokens"

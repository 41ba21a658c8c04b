"""A model whose only tokenizer is a tekken.json, through the whole engine."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from cadence import LLM, SamplingParams
from cadence.core.errors import InvalidRequestError, TokenizerError
from tests.text.test_tekken import SPECIAL, write_tekken

pytestmark = pytest.mark.engine

PARAMS = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
BYTES = [bytes([byte]) for byte in range(256)]


@pytest.fixture
def directory(tiny_model: Callable[[str], Path], tmp_path: Path) -> Path:
    for name in ("config.json", "model.safetensors"):
        shutil.copy(tiny_model("llama") / name, tmp_path)
    return write_tekken(tmp_path, BYTES)


@pytest.mark.parametrize("mode", ["auto", "mistral"])
def test_text_goes_in_and_comes_out(directory: Path, mode: str) -> None:
    llm = LLM(str(directory), tokenizer_mode=mode, dtype="float32", max_model_len=64)
    (output,) = llm.generate("Hi", PARAMS, use_tqdm=False)
    assert output.prompt_token_ids == [1, SPECIAL + ord("H"), SPECIAL + ord("i")]
    said = [token - SPECIAL for token in output.outputs[0].token_ids if SPECIAL <= token < SPECIAL + 256]
    assert output.outputs[0].text == bytes(said).decode(errors="replace")


def test_a_chat_without_the_package_is_refused_and_one_with_a_template_is_not(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "mistral_common", None)
    monkeypatch.setitem(sys.modules, "mistral_common.protocol.instruct.request", None)
    llm, chat = LLM(str(directory), dtype="float32", max_model_len=64), [{"role": "user", "content": "Hi"}]
    with pytest.raises(InvalidRequestError, match="pip install mistral-common"):
        llm.chat(chat, PARAMS, use_tqdm=False)
    template = "[INST]{{ messages[0].content }}[/INST]"
    (output,) = llm.chat(chat, PARAMS, use_tqdm=False, chat_template=template)
    assert output.prompt_token_ids == [3, SPECIAL + ord("H"), SPECIAL + ord("i"), 4]


def test_without_such_a_file_the_mode_is_refused(tiny_model: Callable[[str], Path]) -> None:
    with pytest.raises(TokenizerError, match=r"tokenizer_mode=mistral reads tekken\.json"):
        LLM(str(tiny_model("llama")), tokenizer_mode="mistral", max_model_len=64)

"""Models that see from two GGUF files, as llama.cpp has them: they say what transformers says of the folder that both
were made of."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from cadence import LLM, RequestOutput, SamplingParams
from cadence.config.args import EngineArgs
from cadence.core.errors import ConfigError, ModelNotFoundError, WeightsError
from cadence.engine.source import find_source
from cadence.entrypoints.async_llm import AsyncLLM
from cadence.models.loader.sharded_state import save_sharded
from tests.e2e.test_media import BASE, GREEDY, PROMPTS, SIGN, Answers, answers, barring, check_parity, prompt
from tests.helpers.gguf_towers import AS_NOW, Written, write_pair
from tests.helpers.seeing import QwenOracle, SeeingOracle
from tests.helpers.tiny_gguf import make_tiny_gguf
from tests.helpers.tiny_qwen_vl import IMAGE_PAD, VIDEO_PAD, make_qwen_vl
from tests.helpers.tiny_vision import make_vision
from tests.helpers.wide import mostly_wide

pytestmark = [pytest.mark.engine, pytest.mark.warm]

WHOLE: dict[str, Any] = {**BASE, "quantization": "none"}  # numbers as the files have them
OVERRIDES: Mapping[str, dict[str, Any]] = {"gemma3": {"hf_overrides": {"query_pre_attn_scalar": 16}}}  # no file says it
VICUNA = {"<image>": "<unk>"}  # LLaVA's files with Llama's own vocabulary
SHORT = {"<image_soft_token>": "<unused0>"}  # Gemma's, whose tokenizer's file ends before that token
CASES: dict[str, tuple[str, Written]] = {
    "llava": ("llava", AS_NOW),
    "llava of 2023": ("llava", Written(swapped=True, renamed=VICUNA)),
    "llava with siglip": ("llava_siglip", AS_NOW),
    "llava_next": ("llava_next", AS_NOW),
    "smolvlm": ("smolvlm", AS_NOW),
    "gemma3": ("gemma3", Written(renamed=SHORT)),
    "qwen2": ("qwen2", Written(swapped=True)),
    "qwen2.5": ("qwen2.5", AS_NOW),
}


def make(family: str, directory: Path) -> Path:
    if family.startswith("qwen"):
        return make_qwen_vl(family.removeprefix("qwen"), directory)
    return make_vision(family, directory)


def asked(family: str) -> list[dict[str, Any]]:
    return [prompt(*each, "qwen" if family.startswith("qwen") else family) for each in PROMPTS]


@pytest.mark.parametrize("case", mostly_wide(CASES, ("llava of 2023", "llava_next", "smolvlm", "gemma3", "qwen2.5")))
def test_tokens_and_logprobs_are_those_of_transformers(tmp_path: Path, case: str) -> None:
    family, how = CASES[case]
    source = make(family, tmp_path / "source")
    llm = LLM(model=str(write_pair(source, tmp_path / "gguf", how)), **WHOLE, **OVERRIDES.get(family, {}))
    if family.startswith("qwen"):
        qwen, pads = QwenOracle(source), [IMAGE_PAD, VIDEO_PAD]
        for output, (_, pictures) in zip(run(llm, family, pads), PROMPTS, strict=True):
            assert output.prompt_token_ids is not None
            (answer,) = answers([output])
            check_parity(qwen.logprobs(output.prompt_token_ids, pictures, answer[0]), answer, pads)
        return
    oracle = SeeingOracle(source)
    pads, sign = [oracle.model.config.image_token_id], SIGN.get(family, "<image>")
    for answer, (text, pictures) in zip(answers(run(llm, family, pads)), PROMPTS, strict=True):
        check_parity(oracle.logprobs(text.replace("IMAGE", sign), pictures, answer[0]), answer, pads)


def run(llm: LLM, family: str, pads: list[int]) -> Any:
    return llm.generate(asked(family), barring(pads), use_tqdm=False)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The language model's file, and halves of the tower beside it."""
    folder = tmp_path_factory.mktemp("llava")
    return write_pair(make_vision("llava", folder / "source"), folder / "gguf", Written(kind="F16"))


@pytest.fixture(scope="module")
def expected(pair: Path) -> Answers:
    return answers(LLM(model=str(pair), **WHOLE).generate(asked("llava"), GREEDY, use_tqdm=False))


@pytest.mark.parametrize(
    "options",
    [{"tensor_parallel_size": 2}, {"pipeline_parallel_size": 2}, {"quantization": None}],
    ids=["two ranks", "two stages", "blocks as they are"],
)
def test_ranks_stages_and_blocks(pair: Path, expected: Answers, options: dict[str, Any]) -> None:
    found = answers(LLM(model=str(pair), **WHOLE | options).generate(asked("llava"), GREEDY, use_tqdm=False))
    assert [tokens for tokens, _ in found] == [tokens for tokens, _ in expected]


def test_an_engine_of_its_own_and_a_folder(pair: Path, expected: Answers) -> None:
    """The file is found once, and named to the engine."""

    async def ask() -> Answers:
        llm = await AsyncLLM.start(EngineArgs(model=str(pair.parent), **WHOLE))
        try:
            return answers([await last(llm, given, str(number)) for number, given in enumerate(asked("llava"))])
        finally:
            await llm.shutdown(drain=False)

    assert asyncio.run(ask()) == expected


async def last(llm: AsyncLLM, given: dict[str, Any], name: str) -> RequestOutput:
    return [output async for output in llm.generate(given, GREEDY, name)][-1]


def test_saved_for_ranks(pair: Path, expected: Answers, tmp_path: Path) -> None:
    save_sharded(find_source(EngineArgs(model=str(pair))).files, 1, tmp_path / "saved")
    llm = LLM(model=str(tmp_path / "saved"), load_format="sharded_state", **WHOLE)
    assert answers(llm.generate(asked("llava"), GREEDY, use_tqdm=False)) == expected


def tower(**options: Any) -> Path | None:
    return find_source(EngineArgs(**options)).files.tower


def test_which_file_it_is(pair: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    beside = pair.parent / "mmproj-model-f16.gguf"
    other = tmp_path / "eyes.gguf"
    other.symlink_to(beside)
    assert tower(model=str(pair)) == tower(model=str(pair.parent)) == beside
    assert tower(model=str(pair), mmproj="none") is None
    assert tower(model=str(pair), mmproj=str(other)) == other
    named = find_source(EngineArgs(model=str(pair), mmproj=str(other)))
    assert named.engine_options(EngineArgs(model=str(pair)))["mmproj"] == str(other)
    alone = find_source(EngineArgs(model=str(pair), mmproj="none"))
    assert alone.engine_options(EngineArgs(model=str(pair)))["mmproj"] == "none"
    (pair.parent / "mmproj-bf16.gguf").symlink_to(beside)
    (pair.parent / "mmproj-a.gguf").symlink_to(beside)
    assert tower(model=str(pair)) == beside, "one of 16 bits first"
    lonely = make_tiny_gguf(tmp_path / "text.gguf", "Q8_0")
    (tmp_path / "mmproj-other.gguf").symlink_to(beside)
    with caplog.at_level(logging.WARNING):
        assert tower(model=str(lonely)) is None
    assert "mmproj-other.gguf is passed over" in caplog.text and "belongs to another model" in caplog.text
    wrong: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"model": str(lonely), "mmproj": str(beside)}, WeightsError, "belongs to another model"),
        ({"model": str(pair), "mmproj": str(pair)}, WeightsError, "no tower"),
        ({"model": str(pair), "mmproj": str(tmp_path / "nothing.gguf")}, ModelNotFoundError, "nothing.gguf"),
        ({"model": str(pair.parent.parent / "source"), "mmproj": str(beside)}, ConfigError, "no .gguf file"),
    ]
    for options, error, message in wrong:
        with pytest.raises(error, match=message):
            find_source(EngineArgs(**options))


def test_a_model_without_its_tower_reads_texts(tmp_path: Path) -> None:
    source = make_qwen_vl("2.5", tmp_path / "source")
    model = write_pair(source, tmp_path / "gguf")
    seeing = LLM(model=str(model), **WHOLE)
    blind = LLM(model=str(model), mmproj="none", **WHOLE)
    given = [{"prompt": "to be or not to be"}, {"prompt": "the quick brown fox"}]
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, logprobs=2)
    found, plain = (answers(llm.generate(given, params, use_tqdm=False)) for llm in (seeing, blind))
    assert [tokens for tokens, _ in found] == [tokens for tokens, _ in plain]

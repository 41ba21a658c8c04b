"""An engine gives its memory back for a while: as the system sees it, and with the same tokens afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from cadence import LLM, AsyncLLMEngine, EngineArgs, SamplingParams
from cadence.core.errors import InvalidRequestError
from cadence.device.driver import DriverError
from cadence.device.regions import CpuRegions
from tests.helpers.tiny_quantized import make_quantized
from tests.helpers.wide import mostly_wide_rows

pytestmark = [pytest.mark.engine, pytest.mark.warm]

OPTIONS: dict[str, Any] = {"dtype": "float32", "max_model_len": 256, "max_num_seqs": 4, "device": "cpu"}
PROMPTS = [{"prompt_token_ids": [7 + index, *range(20, 90)]} for index in range(3)]


def greedy(max_tokens: int = 8) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)


def tokens_of(llm: LLM, prompts: list[Any] = PROMPTS) -> list[list[int]]:
    return [list(each.outputs[0].token_ids) for each in llm.generate(prompts, greedy(), use_tqdm=False)]


@pytest.fixture(scope="module")
def llm(tiny_model: Callable[[str], Path]) -> LLM:
    return LLM(str(tiny_model("llama")), **OPTIONS)


@pytest.mark.parametrize("level", [0, 1, 2])
def test_tokens_are_those_without_sleep(llm: LLM, level: int) -> None:
    wanted = tokens_of(llm)
    llm.sleep(level)
    assert llm.is_sleeping()
    llm.wake_up()
    assert not llm.is_sleeping() and tokens_of(llm) == wanted
    (first,) = llm.generate(PROMPTS[0], greedy(), use_tqdm=False)
    assert first.num_cached_tokens, "prefixes are found again"


def test_what_runs_goes_on_when_it_wakes(llm: LLM) -> None:
    """And what comes meanwhile begins then."""
    wanted = tokens_of(llm)
    engine = llm.llm_engine
    for number, prompt in enumerate(PROMPTS[:2]):
        engine.add_request(f"runs {number}", prompt, greedy())
    done = {output.request_id: output for _ in range(4) for output in engine.step()}
    llm.sleep(2)
    done |= {output.request_id: output for output in engine.step()}  # of what was in flight
    engine.add_request("comes", PROMPTS[2], greedy())
    assert not any(engine.step() for _ in range(5))
    with pytest.raises(InvalidRequestError, match="the engine sleeps"):
        llm.generate("x", greedy())
    llm.wake_up(["weights"])
    assert llm.is_sleeping() and not any(engine.step() for _ in range(5))
    llm.wake_up(["kv_cache"])
    assert not llm.is_sleeping()
    while engine.has_unfinished_requests():
        done |= {output.request_id: output for output in engine.step()}
    found = [list(done[name].outputs[0].token_ids) for name in ("runs 0", "runs 1", "comes")]
    assert found == wanted


def test_what_cannot_be_asked_for(llm: LLM) -> None:
    with pytest.raises(InvalidRequestError, match="level must be one of 0, 1, 2, not 3"):
        llm.sleep(3)
    with pytest.raises(InvalidRequestError, match="'wheights' is none of them"):
        llm.wake_up(["wheights"])
    assert not llm.is_sleeping()


@pytest.mark.parametrize("level", [1, 2])
def test_one_that_sleeps_can_be_shut_down(tiny_model: Callable[[str], Path], level: int) -> None:
    with LLM(str(tiny_model("llama")), **OPTIONS) as llm:
        llm.enqueue(PROMPTS, greedy(), use_tqdm=False)
        llm.sleep(level)
    assert not llm.llm_engine.has_unfinished_requests()


@pytest.mark.parametrize("moment", ["give_back", "take_back"])
def test_too_little_memory_is_no_end(llm: LLM, monkeypatch: pytest.MonkeyPatch, moment: str) -> None:
    """Neither for what is copied to the host, nor when others have taken what it gave back."""

    def short(*args: Any) -> None:
        raise DriverError("16 MiB cannot be had")

    wanted = tokens_of(llm)
    if moment == "take_back":
        llm.sleep()
    with monkeypatch.context() as patched:
        patched.setattr(CpuRegions, moment, short)
        with pytest.raises(InvalidRequestError, match="16 MiB cannot be had"):
            llm.sleep() if moment == "give_back" else llm.wake_up()
        assert llm.is_sleeping() == (moment == "take_back")
    llm.wake_up()
    assert tokens_of(llm) == wanted


QUANTISED = ("GPTQ 4 bits, by activation", "AWQ", "fp8 block 128", "nf4, twice", "bnb int8", "MXFP4")


@pytest.mark.parametrize(
    ("form", "family"), mostly_wide_rows([*product(QUANTISED, ("llama", "mixtral"))], [("AWQ", "llama")])
)
def test_quantised_weights_are_read_again(tmp_path: Path, form: str, family: str) -> None:
    """In the memory that held them: what was recorded is as good as before."""
    with LLM(str(make_quantized(form, tmp_path, family)), **OPTIONS | {"dtype": "auto"}) as llm:
        wanted = tokens_of(llm)
        worker = llm.collective_rpc(lambda worker: worker)[0]
        llm.sleep(2)
        llm.wake_up()
        assert tokens_of(llm) == wanted
        assert worker._weights.reload(), "all addresses stayed"
        del worker


SIZES = {"hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 8}  # 110 MB of weights


def resident(pid: int) -> float:
    """MB of a process, as others see it."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("Anonymous:"))


def test_memory_goes_back_to_the_system(tiny_model: Callable[[str], Path]) -> None:
    """Measured from outside of the engine: with its keys at level 1, and all of its weights at level 2."""
    args = EngineArgs(
        str(tiny_model("llama")), load_format="dummy", hf_overrides=SIZES, kv_cache_memory_bytes=2**26, **OPTIONS
    )
    engine = AsyncLLMEngine.from_engine_args(args)
    try:
        asyncio.run(measured(engine))
    finally:
        engine.shutdown()


async def measured(engine: AsyncLLMEngine) -> None:
    pid = engine._llm.engine_pid

    async def answers() -> list[list[int]]:
        return [await tokens_by(engine, number, [number, *range(20, 220)]) for number in range(1, 9)]

    wanted, before = await answers(), resident(pid)
    for level, least in ((1, 20), (2, 90)):  # MB more than at the level before
        await engine.sleep(level)
        asleep = resident(pid)
        assert await engine.is_sleeping() and asleep < before - least, f"of {before:.0f} MB {asleep:.0f} are left"
        before = asleep
        waiting = asyncio.ensure_future(tokens_by(engine, 99, [1, *range(20, 220)]))
        await engine.wake_up()
        assert await waiting == wanted[0]
        assert await answers() == wanted


async def tokens_by(engine: AsyncLLMEngine, number: int, prompt: list[int]) -> list[int]:
    outputs = engine.generate({"prompt_token_ids": prompt}, greedy(), f"{number}")
    return [list(output.outputs[0].token_ids) async for output in outputs][-1]

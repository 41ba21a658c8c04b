"""An engine process that is killed asleep, or on the way there and back: the next one sleeps as it did, with its memory
given back, and all requests get the tokens that they would have had."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from cadence import SamplingParams
from cadence.config.args import EngineArgs
from cadence.core.contract.control import SLEEP, SLEEPING_PARTS, UPDATE_WEIGHTS, WAKE_UP
from cadence.core.contract.sleep import WeightsState
from cadence.core.errors import InvalidRequestError
from cadence.engine.supervise.control_journal import ControlJournal
from cadence.engine.supervise.limits import SupervisorLimits
from cadence.entrypoints.async_llm import AsyncLLM
from tests.helpers.wide import mostly_wide

pytestmark = [pytest.mark.engine, pytest.mark.warm]

LIMITS = SupervisorLimits(heartbeat_s=120.0, tick_s=0.05, first_backoff_s=0.01, probe_after=10**9)
OPTIONS: dict[str, Any] = {"dtype": "float32", "max_model_len": 512, "device": "cpu", "max_num_seqs": 8}
SIZES = {"hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 8}  # 110 MB of weights


@contextlib.asynccontextmanager
async def running(model: Path, **options: Any) -> AsyncIterator[AsyncLLM]:
    llm = await AsyncLLM.start(EngineArgs(model=str(model), **{**OPTIONS, **options}), limits=LIMITS)
    try:
        yield llm
    finally:
        await llm.shutdown(drain=False)


async def ask(llm: AsyncLLM, number: int, max_tokens: int = 40) -> list[int]:
    params = SamplingParams(max_tokens=max_tokens, ignore_eos=True, temperature=0)
    outputs = llm.generate({"prompt_token_ids": [5 + number, *range(20, 60)]}, params, f"{number}-{max_tokens}")
    return [list(output.outputs[0].token_ids) async for output in outputs][-1]


async def killed(llm: AsyncLLM) -> None:
    """The next engine is ready, and has what is replayed."""
    restarts = llm.num_restarts
    os.kill(llm.engine_pid, signal.SIGKILL)
    async with asyncio.timeout(120):
        while not (llm.num_restarts > restarts and llm.is_ready()):
            await asyncio.sleep(0.01)
        await llm._supervisor._replaying


async def kill_soon(llm: AsyncLLM, work: Any) -> None:
    """While the call is under way."""
    under_way = asyncio.ensure_future(work)
    await asyncio.sleep(0.002)
    await killed(llm)
    await under_way


async def fall_asleep(llm: AsyncLLM) -> None:
    await kill_soon(llm, llm.sleep(1))


async def in_light_sleep(llm: AsyncLLM) -> None:
    await llm.sleep(1)
    await killed(llm)


async def in_deep_sleep(llm: AsyncLLM) -> None:
    await llm.sleep(2)
    await killed(llm)
    await killed(llm)


async def half_awake(llm: AsyncLLM) -> None:
    await llm.sleep(2)
    await llm.wake_up(["weights"])
    await killed(llm)
    assert await llm.is_sleeping()
    await llm.wake_up(["kv_cache"])
    await llm.sleep(0)


async def waking(llm: AsyncLLM) -> None:
    await llm.sleep(2)
    await kill_soon(llm, llm.wake_up())
    assert not await llm.is_sleeping()
    await llm.sleep(1)


STATES = {each.__name__: each for each in (fall_asleep, in_light_sleep, in_deep_sleep, half_awake, waking)}


@pytest.mark.parametrize("state", mostly_wide(STATES, ("fall_asleep", "in_deep_sleep", "waking")))
def test_killed_in_each_state(tiny_model: Callable[[str], Path], state: str) -> None:
    async def check() -> None:
        async with running(tiny_model("llama")) as llm:
            wanted = [await ask(llm, number) for number in range(4)]
            running_ones = [asyncio.ensure_future(ask(llm, number)) for number in range(3)]
            await asyncio.sleep(0.01)
            await STATES[state](llm)
            late = asyncio.ensure_future(ask(llm, 3))
            assert await llm.is_sleeping() and llm.last_step_age() == 0.0
            await llm.engine_states()
            assert not late.done()
            await llm.wake_up()
            assert not await llm.is_sleeping()
            assert await asyncio.gather(*running_ones, late) == wanted
            await killed(llm)
            assert not await llm.is_sleeping() and await ask(llm, 1) == wanted[1]

    asyncio.run(check())


def test_an_engine_restarted_asleep_has_given_its_memory_back(tiny_model: Callable[[str], Path]) -> None:
    """Seen from outside."""

    def resident(pid: int) -> float:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("Anonymous:"))

    async def check() -> None:
        async with running(tiny_model("llama"), load_format="dummy", hf_overrides=SIZES) as llm:
            wanted, awake = await ask(llm, 1, 4), resident(llm.engine_pid)
            await llm.sleep(2)
            await killed(llm)
            assert await llm.is_sleeping() and resident(llm.engine_pid) < awake - 80
            await llm.wake_up()
            assert await ask(llm, 1, 4) == wanted

    asyncio.run(check())


def test_other_weights_outlive_the_engine(tiny_model: Callable[[str], Path], tmp_path: Path) -> None:
    """Those of a folder, and those that were given by name."""
    first = tiny_model("llama")
    tensors = load_file(first / "model.safetensors")
    name = "model.layers.1.mlp.down_proj.weight"
    other = shutil.copytree(first, tmp_path / "other")
    save_file({key: tensor.flip(0) for key, tensor in tensors.items()}, other / "model.safetensors")

    async def check() -> None:
        async with running(first) as llm:
            before = await ask(llm, 1)
            await llm.update_weights(other)
            wanted = await ask(llm, 1)
            await killed(llm)
            assert await ask(llm, 1) == wanted != before
            await llm.update_weights({name: tensors[name]})
            mixed = await ask(llm, 1)
            await llm.sleep(2)
            await killed(llm)
            await llm.wake_up()
            assert await ask(llm, 1) == mixed != wanted
            files = llm._control._weights._folder
            assert files is not None and len(list(files.iterdir())) == 1
            assert await llm.collective_rpc("reload_weights", kwargs={"weights_path": str(first)}) == [None]
            assert await ask(llm, 1) == before and not list(files.iterdir()), "it is not needed any more"
        assert not files.exists()

    asyncio.run(check())


@pytest.mark.parametrize("mode", ["abort", "wait"])
def test_what_runs_may_end_before(tiny_model: Callable[[str], Path], mode: str) -> None:
    async def check() -> None:
        async with running(tiny_model("llama")) as llm:
            runs = asyncio.ensure_future(ask(llm, 1, 100))
            while not llm._open:
                await asyncio.sleep(0.001)
            await llm.sleep(1, mode)
            found = await runs
            assert (len(found) == 100) == (mode == "wait") and await llm.is_sleeping()
            with pytest.raises(InvalidRequestError, match="mode must be one of"):
                await llm.sleep(1, "freeze")
            await llm.wake_up()

    asyncio.run(check())


def test_what_is_replayed() -> None:
    journal = ControlJournal()

    def kept() -> list[tuple[str, Any]]:
        return [(call.verb.name, call.payload) for call in journal.kept()]

    journal.note(SLEEP, 0)
    journal.note(SLEEP, 2)
    journal.note(WAKE_UP, "weights")
    journal.note(UPDATE_WEIGHTS, WeightsState("/a"))
    journal.note(SLEEPING_PARTS, None)
    assert kept() == [("sleep", 2), ("wake_up", "weights"), ("update_weights", WeightsState("/a"))]
    journal.note(WAKE_UP, "kv_cache")
    journal.note(WAKE_UP, "")
    assert kept() == [("update_weights", WeightsState("/a"))]
    journal.note(SLEEP, 1)
    journal.note(WAKE_UP, "weights")
    journal.note(SLEEP, 1)
    assert kept() == [("update_weights", WeightsState("/a")), ("sleep", 1)], "all of it sleeps again"
    assert all(call.verb.is_first for call in journal.kept())

"""Adapters in an engine process: the same tokens as in this one, also when the engine dies under them."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cadence import LLM, RequestOutputKind, SamplingParams
from cadence.config.args import EngineArgs
from cadence.core.errors import AdapterError, InvalidRequestError
from cadence.core.failure import FailureCode
from cadence.core.lora_request import LoRARequest
from cadence.entrypoints.async_llm import AsyncLLM
from tests.helpers.adapters import make_adapter

pytestmark = [pytest.mark.engine, pytest.mark.warm]

OPTIONS: dict[str, Any] = {"dtype": "float32", "max_model_len": 512, "num_gpu_blocks_override": 500}
SLOTS: dict[str, Any] = {"enable_lora": True, "max_loras": 2}
PARAMS = SamplingParams(temperature=0, max_tokens=200, ignore_eos=True, output_kind=RequestOutputKind.FINAL_ONLY)
PROMPT = [5, 6, 7]


async def tokens_of(llm: AsyncLLM, name: str, adapter: LoRARequest | None) -> list[int]:
    job = llm.generate(PROMPT, PARAMS, name, lora_request=adapter)
    return list([output async for output in job][-1].outputs[0].token_ids)


def test_a_restarted_engine_has_its_adapters_again(tiny_model: Callable[[str], Path], tmp_path: Path) -> None:
    directory = tiny_model("llama")
    adapters: list[LoRARequest | None] = [None]
    for index in range(4):
        path = tmp_path / str(index)
        make_adapter(directory, path, seed=index, r=8, target_modules=["q_proj", "v_proj", "down_proj"])
        adapters.append(LoRARequest(str(index), index + 1, str(path)))
    with LLM(str(directory), **OPTIONS, **SLOTS) as offline:
        outputs = offline.generate([PROMPT] * len(adapters), PARAMS, lora_request=adapters, use_tqdm=False)
    expected = [list(output.outputs[0].token_ids) for output in outputs]
    assert len(set(map(tuple, expected))) == len(adapters)

    async def scenario() -> None:
        llm = await AsyncLLM.start(EngineArgs(model=str(directory), **OPTIONS, **SLOTS))
        try:
            for number in (1, 2):
                assert await llm.add_lora(adapters[number]) and await llm.list_loras() >= {number}
            assert await llm.pin_lora(1)
            jobs = [tokens_of(llm, str(index), adapter) for index, adapter in enumerate(adapters)]
            streams = asyncio.gather(*jobs)
            while not any(entry.token_ids for entry in llm._supervisor._logic.journal):
                await asyncio.sleep(0.01)
            os.kill(llm.engine_pid, signal.SIGKILL)
            assert await streams == expected
            assert llm.num_restarts == 1
            await llm._supervisor._replaying
            assert {1, 2} <= await llm.list_loras() and await llm.pin_lora(3)
            with pytest.raises(InvalidRequestError, match="2 slots"):  # 1 is still pinned
                await llm.pin_lora(2)
            assert await llm.remove_lora(1) and await llm.pin_lora(2)
            with pytest.raises(AdapterError, match="no such file"):
                await llm.add_lora(LoRARequest("no", 9, str(tmp_path / "no")))
            nowhere = llm.generate(PROMPT, PARAMS, "no", lora_request=LoRARequest("no", 9, str(tmp_path / "no")))
            (failed,) = [output.outputs[0] async for output in nowhere]
            assert failed.failure is FailureCode.BAD_ADAPTER and "no such file" in str(failed.stop_reason)
        finally:
            await llm.shutdown(drain=False)

    asyncio.run(scenario())


def test_a_changed_adapter_does_not_go_on_with_a_stream(tiny_model: Callable[[str], Path], tmp_path: Path) -> None:
    """The engine dies, and its successor finds other files: the stream ends with a sentence, a new one has the new."""
    directory = tiny_model("llama")
    config: dict[str, Any] = {"r": 8, "target_modules": ["q_proj", "v_proj"]}
    make_adapter(directory, tmp_path / "changed", seed=1, **config)
    make_adapter(directory, tmp_path / "kept", seed=2, **config)
    make_adapter(directory, tmp_path / "new", seed=3, **config)
    changed, kept = (LoRARequest(name, 1, str(tmp_path / name)) for name in ("changed", "kept"))

    async def scenario() -> None:
        llm = await AsyncLLM.start(EngineArgs(model=str(directory), **OPTIONS, **SLOTS))
        try:
            expected = await tokens_of(llm, "alone", kept)
            before = await tokens_of(llm, "before", changed)
            long = SamplingParams(temperature=0, max_tokens=400, ignore_eos=True, output_kind=RequestOutputKind.DELTA)
            stream = llm.generate(PROMPT, long, "stream", lora_request=changed)
            await anext(stream)
            other = asyncio.ensure_future(tokens_of(llm, "other", kept))
            shutil.copytree(tmp_path / "new", tmp_path / "changed", dirs_exist_ok=True)
            os.kill(llm.engine_pid, signal.SIGKILL)
            last = [output async for output in stream][-1].outputs[0]
            assert last.failure is FailureCode.BAD_ADAPTER and "'changed' were changed" in str(last.stop_reason)
            assert await other == expected and await tokens_of(llm, "after", changed) != before
        finally:
            await llm.shutdown(drain=False)

    asyncio.run(scenario())


def test_an_adapter_that_is_gone_when_the_engine_restarts_is_logged(
    tiny_model: Callable[[str], Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    directory = tiny_model("llama")
    make_adapter(directory, tmp_path / "gone", seed=1, r=8, target_modules=["q_proj"])

    async def scenario() -> None:
        llm = await AsyncLLM.start(EngineArgs(model=str(directory), **OPTIONS, **SLOTS))
        try:
            await llm.add_lora(LoRARequest("gone", 1, str(tmp_path / "gone")))
            shutil.rmtree(tmp_path / "gone")
            os.kill(llm.engine_pid, signal.SIGKILL)
            assert await tokens_of(llm, "after", None)
            await llm._supervisor._replaying
            assert llm.num_restarts == 1 and await llm.list_loras() == set()
        finally:
            await llm.shutdown(drain=False)

    asyncio.run(scenario())
    assert "the restarted engine lacks adapter 1: " in caplog.text

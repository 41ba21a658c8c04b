"""What is asked of the engines of an `AsyncLLM` beside outputs: empty caches, pauses, sleep, weights, adapters."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from cadence.config.engine_config import EngineConfig
from cadence.config.sleep import check_can_sleep
from cadence.core.contract import control
from cadence.core.contract.hold import RUN_MODES, PauseCall, SleepCall
from cadence.core.contract.sleep import checked_level, checked_tags
from cadence.core.errors import EngineDeadError, InvalidRequestError
from cadence.core.lora_request import checked_number, required_adapter
from cadence.engine.supervise.engine_client import EngineClient
from cadence.entrypoints.async_inputs import AsyncInputs
from cadence.entrypoints.engine_control import ControlFactory
from cadence.entrypoints.front_hold import FrontHold
from cadence.entrypoints.open_requests import OpenRequests
from cadence.entrypoints.rpc import bound_method, num_ranks
from cadence.entrypoints.weights_files import Named, NewWeights


class AsyncControl:
    inputs: AsyncInputs

    def __init__(
        self, config: EngineConfig, engines: EngineClient, requests: OpenRequests, open_control: ControlFactory
    ) -> None:
        self.config = config
        self._supervisor = engines
        self._open = requests
        self._hold = FrontHold(requests)
        self._control = open_control(engines, self._hold)
        self._death: Exception | None = None  # why there will be no engine any more

    def _check_alive(self) -> None:
        if self._death is not None:
            raise EngineDeadError(str(self._death))

    async def reset_prefix_cache(self, reset_running_requests: bool = False) -> bool:
        self._check_alive()
        return await self._supervisor.call(control.RESET_PREFIX_CACHE, reset_running_requests)

    async def reset_encoder_cache(self) -> None:
        self._check_alive()
        await self._supervisor.call(control.RESET_ENCODER_CACHE, None)

    async def reset_mm_cache(self) -> None:
        self.inputs.forget_media()
        await self.reset_encoder_cache()

    async def pause_generation(self, mode: str = "abort", clear_cache: bool = True) -> None:
        """New requests wait for `resume_generation`. Those that run are aborted, waited for (`wait`), or go on then
        (`keep`)."""
        self._check_alive()
        await self._control.pause(PauseCall(_checked_mode(mode), bool(clear_cache)))

    async def resume_generation(self) -> None:
        await self._control.resume()

    async def is_paused(self) -> bool:
        return self._hold.now.is_paused

    async def sleep(self, level: int = 1, mode: str = "keep") -> None:
        """Computes nothing, and gives memory back: at level 1 weights are kept in host memory, at level 2 they are read
        again when it wakes. Requests wait, those that run too, or these are aborted (mode="abort") or waited for
        (`wait`) before. A restarted engine sleeps as this one did."""
        self._check_alive()
        check_can_sleep(self.config, checked_level(level))
        await self._control.sleep(SleepCall(level, _checked_mode(mode)))

    async def wake_up(self, tags: list[str] | None = None) -> None:
        """All of it, or `weights` and `kv_cache` one after the other; requests go on when both are there."""
        self._check_alive()
        await self._control.wake_up(checked_tags(tags))

    async def is_sleeping(self) -> bool:
        """Whether any of it does."""
        self._check_alive()
        return await self._control.any_sleeps()

    async def update_weights(self, weights: NewWeights) -> None:
        """As `LLM.update_weights`. A restarted engine has them, too."""
        self._check_alive()
        await self._control.set_weights(weights)

    async def reload_weights(self, weights_path: str | None = None, weights_iterator: Named | None = None) -> None:
        """As `LLM.reload_weights`."""
        self._check_alive()
        await self._control.set_weights(weights_path if weights_path is not None else weights_iterator)

    async def collective_rpc(
        self,
        method: str,
        timeout: float | None = None,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> list[Any]:
        """One of `METHODS` (`entrypoints/rpc.py`), by all ranks of all engines -> the answer of each. timeout: in
        seconds"""
        call = bound_method(self, method, args, kwargs or {})
        answer = await asyncio.wait_for(call(), timeout)
        return [answer] * num_ranks(self.config)

    async def check_health(self) -> None:
        self._check_alive()

    async def add_lora(self, lora_request: object) -> bool:
        """Reads an adapter into host memory before a request names it. Raises an AdapterError for one that cannot be
        used. A restarted engine has it again."""
        self._check_alive()
        adapter = required_adapter(lora_request, self.config.lora.enabled)
        return await self._supervisor.call(control.ADD_ADAPTER, adapter)

    async def remove_lora(self, lora_id: int) -> bool:
        """Forgets an adapter: requests that run keep it, later ones have it read again. -> whether there was one"""
        self._check_alive()
        return await self._supervisor.call(control.REMOVE_ADAPTER, checked_number(lora_id))

    async def list_loras(self) -> set[int]:
        """The ids of the adapters in host memory."""
        self._check_alive()
        numbers = await self._supervisor.call(control.LIST_ADAPTERS, None)
        return set(numbers)

    async def pin_lora(self, lora_id: int) -> bool:
        """Keeps an adapter in host memory, and in the slot that its first request gets, until it is removed."""
        self._check_alive()
        return await self._supervisor.call(control.PIN_ADAPTER, checked_number(lora_id))


def _checked_mode(mode: str) -> str:
    if mode not in RUN_MODES:
        raise InvalidRequestError(f"mode must be one of {', '.join(RUN_MODES)}, not {mode!r}", "mode")
    return mode

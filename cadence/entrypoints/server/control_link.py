"""Pauses, sleep and weights of engines that several API processes share: asked of the process that owns the engines,
which tells all of these."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

from cadence.core.contract.codec import answer_of, call_of
from cadence.core.contract.control import (
    ANY_SLEEPS,
    PAUSE_ALL,
    RESUME_ALL,
    SET_WEIGHTS,
    SLEEP_ALL,
    WAKE_ALL,
    A,
    P,
    Verb,
)
from cadence.core.contract.control_messages import ControlAnswer, ControlCall
from cadence.core.contract.hold import PauseCall, SleepCall
from cadence.core.errors import InvalidRequestError
from cadence.entrypoints.weights_files import NewWeights


class ControlLink:
    """Implements `Control`."""

    def __init__(self, ask: Callable[[ControlCall], Coroutine[Any, Any, ControlAnswer]]) -> None:
        self._ask = ask

    async def pause(self, call: PauseCall) -> None:
        await self._call(PAUSE_ALL, call)

    async def resume(self) -> None:
        await self._call(RESUME_ALL, None)

    async def sleep(self, call: SleepCall) -> None:
        await self._call(SLEEP_ALL, call)

    async def wake_up(self, tags: Sequence[str]) -> None:
        await self._call(WAKE_ALL, list(tags))

    async def any_sleeps(self) -> bool:
        return await self._call(ANY_SLEEPS, None)

    async def set_weights(self, weights: NewWeights | None) -> None:
        if not (weights is None or isinstance(weights, str | Path)):
            raise InvalidRequestError("weights: a folder or a .gguf file", "weights")
        await self._call(SET_WEIGHTS, "" if weights is None else str(weights))

    def give_up(self) -> None:
        """The owner does."""

    def close(self) -> None:
        """Nothing is kept here."""

    async def _call(self, verb: Verb[P, A], payload: P) -> A:
        try:
            answer = await asyncio.wait_for(self._ask(call_of(verb, payload)), verb.deadline_s)
        except TimeoutError:
            raise verb.unanswered("the process that owns the engines") from None
        return answer_of(verb, answer)

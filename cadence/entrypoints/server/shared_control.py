"""Pauses, sleep and weights of engines that several API processes share, in the process that owns the engines."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from cadence.core.contract.codec import answer_to, payload_of
from cadence.core.contract.control import (
    ANY_SLEEPS,
    CONTROL,
    PAUSE_ALL,
    RESUME_ALL,
    SET_WEIGHTS,
    SLEEP_ALL,
    WAKE_ALL,
)
from cadence.core.contract.control_messages import ControlAnswer, ControlCall
from cadence.core.contract.front_messages import ToFront
from cadence.core.contract.hold import KEEP, Hold
from cadence.engine.supervise.engine_client import EngineCalls
from cadence.entrypoints.engine_control import EngineControl
from cadence.entrypoints.server.api_children import ApiChildren


class SharedControl:
    """Implements `HeldFronts`: all of the processes."""

    def __init__(self, engines: EngineCalls, children: ApiChildren) -> None:
        self._children = children
        self._control = control = EngineControl(engines, self)
        self._handlers: Mapping[str, Callable[[Any], Awaitable[Any]]] = {
            PAUSE_ALL.name: control.pause,
            RESUME_ALL.name: lambda _: control.resume(),
            SLEEP_ALL.name: control.sleep,
            WAKE_ALL.name: control.wake_up,
            ANY_SLEEPS.name: lambda _: control.any_sleeps(),
            SET_WEIGHTS.name: lambda place: control.set_weights(place or None),
        }

    @property
    def current(self) -> Hold:
        """What a process that starts has to know."""
        return self._control.current

    async def answer(self, call: ControlCall) -> ControlAnswer:
        """Also when the process that asked is gone: what was begun is finished."""
        try:
            answer = await self._handlers[call.verb](payload_of(CONTROL[call.verb], call))
        except Exception as error:
            answer = error
        return answer_to(call, answer)

    async def hold(self, hold: Hold) -> None:
        self._children.tell(ToFront(hold=hold))
        await self._children.until_all(lambda child: child.hold_version >= hold.version)

    async def quiet(self, hold: Hold) -> None:
        """Those that run now: what ran in one that is gone has ended, and one that starts has nothing."""
        if hold.running == KEEP:
            return
        asked = self._children.serving()

        def are_quiet() -> bool:
            return all(hold.version in child.quiet for child in asked if child in self._children.all())

        await self._children.until(are_quiet)
        for child in asked:
            child.quiet.discard(hold.version)

    def close(self) -> None:
        self._control.give_up()
        self._control.close()

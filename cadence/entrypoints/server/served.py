"""What a server serves, as its process sees it from the first connection to the exit: one model, or several."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from starlette.types import Scope

from cadence.core.errors import EngineDeadError
from cadence.entrypoints.server.routes.state import ServerState

if TYPE_CHECKING:
    from cadence.entrypoints.async_llm import AsyncLLM


class Served(Protocol):
    @property
    def in_flight(self) -> int:
        """Requests."""
        ...

    @property
    def engine_pids(self) -> list[int]:
        """0 where one has no process now."""
        ...

    def drain(self) -> None:
        """From now on no request is accepted."""
        ...

    async def wait_idle(self) -> None: ...

    async def wait_lost(self) -> str:
        """Until nothing can be served any more. -> why"""
        ...

    async def end_engines(self) -> None:
        """The readers of what still runs get an error."""
        ...

    def llm_of(self, scope: Scope) -> AsyncLLM:
        """That a request was handed to."""
        ...


class OneModel:
    def __init__(self, state: ServerState) -> None:
        self._state = state

    @property
    def in_flight(self) -> int:
        return self._state.admission.in_flight

    @property
    def engine_pids(self) -> list[int]:
        return self._state.llm.engine_pids

    def drain(self) -> None:
        self._state.admission.drain()

    async def wait_idle(self) -> None:
        await self._state.admission.wait_idle()

    async def wait_lost(self) -> str:
        await self._state.llm.dead.wait()
        try:
            await self._state.llm.check_health()
        except EngineDeadError as error:
            return str(error)
        return ""

    async def end_engines(self) -> None:
        await self._state.llm.shutdown(drain=False)

    def llm_of(self, scope: Scope) -> AsyncLLM:
        return self._state.llm

"""What a front asks of its engines, be it one or several."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import Any, NamedTuple, Protocol

from cadence.core.contract.control import A, P, Verb
from cadence.core.contract.engine_state import EngineState
from cadence.core.contract.messages import EngineInfo
from cadence.core.contract.update import AnyUpdate
from cadence.engine.supervise.journal import JournalEntry
from cadence.engine.supervise.limits import SupervisorLimits


class EngineCounts(NamedTuple):
    """Of one engine, since the start."""

    restarts: int
    quarantined: int  # requests
    failed: int  # requests that were found to kill engines


class EngineCalls(Protocol):
    """What is asked of all engines beside requests."""

    @property
    def is_ready(self) -> bool:
        """Whether an engine takes requests."""
        ...

    async def call(self, verb: Verb[P, A], payload: P) -> A:
        """Carried out by all engines. Raises EngineDeadError where none answers within the verb's deadline."""
        ...

    def keep(self, verb: Verb[P, Any], payload: P) -> None:
        """Carried out by engines that are started from now on, if the verb is one that is replayed."""
        ...


class EngineClient(EngineCalls, Protocol):
    """Made inside a running event loop. `start` it, then read `updates`."""

    @property
    def pids(self) -> list[int]:
        """By engine; 0 where there is none now."""
        ...

    @property
    def last_progress(self) -> float:
        """Seconds, time.monotonic: when a step last ended, or there was nothing to do."""
        ...

    def counts(self) -> list[EngineCounts]:
        """By engine."""
        ...

    def start(self) -> None: ...

    async def wait_ready(self) -> EngineInfo:
        """When all engines are, the first time. Raises what one died of."""
        ...

    def submit(self, entry: JournalEntry) -> None: ...

    def drop(self, request_ids: Iterable[str]) -> None:
        """The front has ended these itself: whatever an engine still says of them is not passed on."""
        ...

    def updates(self) -> AsyncIterator[Sequence[AnyUpdate]]:
        """Everything all engines report. Ends when stopped; raises when there is no engine any more."""
        ...

    async def stop(self) -> None: ...

    async def states(self, with_blocks: bool) -> list[EngineState]:
        """By engine. Raises EngineDeadError where none answers."""
        ...


# From an engine's options as JSON knows them, the command that starts one, and limits.
ClientFactory = Callable[[dict[str, Any], Sequence[str], SupervisorLimits], EngineClient]

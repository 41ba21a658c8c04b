"""What requests need before they can be scheduled, and the engine does not wait for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol

from cadence.core.failure import Failure
from cadence.core.request import EngineRequest
from cadence.scheduler.constraint import Constraint

Prepared = tuple[EngineRequest, Constraint | Failure]  # (a request, what is put on its output or why it failed)


class Intake(Protocol):
    def takes(self, request: EngineRequest) -> bool:
        """Whether this one has to be prepared first: it is, from now on. Where not, it can be scheduled as it is."""
        ...

    def drop(self, request_ids: Iterable[str]) -> list[EngineRequest]:
        """Those of these that are being prepared: they are no longer."""
        ...

    def ready(self) -> Iterator[Prepared]:
        """Requests that can be scheduled now, or never."""
        ...

    def __len__(self) -> int:
        """Requests that are being prepared."""
        ...

    def wait(self, seconds: float) -> None:
        """Until there may be news, but no longer."""
        ...

    def close(self) -> None: ...

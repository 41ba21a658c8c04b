"""What requests need before they can be scheduled, and the engine does not wait for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Protocol

from cadence.core.failure import Failure
from cadence.core.request import EngineRequest

Prepared = tuple[EngineRequest, Mapping[str, Any] | Failure]  # (a request, what is ready for its features, or why not)

# Carries out a verb of `core/control.py`: a payload -> the answer, or a `concurrent.futures.Future` of it. What it
# raises of ours is the answer, but for an EngineDeadError: that ends the engine.
Handler = Callable[[Any], Any]


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

    def requests(self) -> list[EngineRequest]:
        """Those that are being prepared."""
        ...

    def handlers(self) -> dict[str, Handler]:
        """Of the verbs that it carries out, by name. Answers that come later come in a call of `ready`."""
        ...

    def __len__(self) -> int:
        """Requests that are being prepared, and calls that are not answered."""
        ...

    def wait(self, seconds: float) -> None:
        """Until there may be news, but no longer."""
        ...

    def close(self) -> None: ...


class IntakeChain:
    """Two of them: what the first has prepared goes on to the second, if that one takes it."""

    def __init__(self, first: Intake, second: Intake) -> None:
        self._first = first
        self._second = second
        self._outcomes: dict[str, Mapping[str, Any]] = {}  # by id, of requests that the first has handed on

    def __len__(self) -> int:
        return len(self._first) + len(self._second)

    def takes(self, request: EngineRequest) -> bool:
        return self._first.takes(request) or self._second.takes(request)

    def drop(self, request_ids: Iterable[str]) -> list[EngineRequest]:
        request_ids = list(request_ids)
        for request_id in request_ids:
            self._outcomes.pop(request_id, None)
        return [*self._first.drop(request_ids), *self._second.drop(request_ids)]

    def ready(self) -> Iterator[Prepared]:
        for request, outcome in self._first.ready():
            if isinstance(outcome, Failure) or not self._second.takes(request):
                yield request, outcome
            else:
                self._outcomes[request.request_id] = outcome
        for request, outcome in self._second.ready():
            before = self._outcomes.pop(request.request_id, {})
            yield request, outcome if isinstance(outcome, Failure) else {**before, **outcome}

    def requests(self) -> list[EngineRequest]:
        return [*self._first.requests(), *self._second.requests()]

    def handlers(self) -> dict[str, Handler]:
        return {**self._first.handlers(), **self._second.handlers()}

    def wait(self, seconds: float) -> None:
        (self._second if self._second else self._first).wait(seconds)

    def close(self) -> None:
        self._first.close()
        self._second.close()

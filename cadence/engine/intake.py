"""What requests need before they can be scheduled, and the engine does not wait for: others run meanwhile.

Each feature may have a preparer. A request goes through those that take it, one after another, and then to the
scheduler; what they have prepared goes along under their features' names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from cadence.core.contract.request import EngineRequest
from cadence.core.failure import Failure

Prepared = tuple[EngineRequest, Mapping[str, Any] | Failure]  # (a request, what is ready for its features, or why not)

# Carries out a verb of `core/contract/control.py`: a payload -> the answer, or a `concurrent.futures.Future` of it.
# What it raises of ours is the answer, but for an EngineDeadError: that ends the engine.
Handler = Callable[[Any], Any]


class Preparer(Protocol):
    def takes(self, request: EngineRequest) -> bool:
        """Whether this one has to be prepared here: it is, from now on."""
        ...

    def drop(self, request_ids: Iterable[str]) -> list[EngineRequest]:
        """Those of these that are being prepared: they are no longer."""
        ...

    def ready(self) -> Iterator[Prepared]:
        """Requests that are prepared now, or never will be."""
        ...

    def requests(self) -> list[EngineRequest]:
        """Those that are being prepared."""
        ...

    def __len__(self) -> int:
        """What is under way: requests that are being prepared, and calls that are not answered."""
        ...

    def wait(self, seconds: float) -> None:
        """Until there may be news, but no longer."""
        ...

    def close(self) -> None: ...


class Intake:
    def __init__(self, preparers: Sequence[Preparer], handlers: Mapping[str, Handler] | None = None) -> None:
        """preparers: in the order in which requests go through them. handlers: of the verbs that they carry out, by
        name; answers that come later come in a call of `ready`"""
        self._preparers = preparers
        self.handlers = handlers or {}
        self._prepared: dict[str, Mapping[str, Any]] = {}  # by id, of requests that one has handed on to another

    def __len__(self) -> int:
        return sum(map(len, self._preparers))

    def takes(self, request: EngineRequest) -> bool:
        """Whether this one has to be prepared first. Where not, it can be scheduled as it is."""
        return any(preparer.takes(request) for preparer in self._preparers)

    def drop(self, request_ids: Iterable[str]) -> list[EngineRequest]:
        """Those of these that are being prepared: they are no longer."""
        request_ids = list(request_ids)
        for request_id in request_ids:
            self._prepared.pop(request_id, None)
        return [request for preparer in self._preparers for request in preparer.drop(request_ids)]

    def ready(self) -> Iterator[Prepared]:
        """Requests that can be scheduled now, or never."""
        for number, preparer in enumerate(self._preparers, 1):
            for request, outcome in preparer.ready():
                before = self._prepared.pop(request.request_id, {})
                if isinstance(outcome, Failure):
                    yield request, outcome
                elif any(later.takes(request) for later in self._preparers[number:]):
                    self._prepared[request.request_id] = {**before, **outcome}
                else:
                    yield request, {**before, **outcome}

    def requests(self) -> list[EngineRequest]:
        """Those that are being prepared."""
        return [request for preparer in self._preparers for request in preparer.requests()]

    def wait(self, seconds: float) -> None:
        """Until the last one with something under way may have news, but no longer."""
        for preparer in reversed(self._preparers):
            if len(preparer):
                return preparer.wait(seconds)

    def close(self) -> None:
        for preparer in self._preparers:
            preparer.close()

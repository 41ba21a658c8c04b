"""Requests with an adapter, until it was read. They hold up nobody: others run meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import replace

from cadence.core.adapter import AdapterOutcome, AdapterSpec
from cadence.core.errors import InvalidRequestError
from cadence.core.failure import Failure, FailureCode
from cadence.core.request import EngineRequest
from cadence.engine.intake import Prepared
from cadence.executor.control import Call, forget_adapter, prepare_adapter, prepared_adapters
from cadence.scheduler.constraint import NO_CONSTRAINT

_POLL_S = 0.001


class AdapterDesk:
    """An `Intake`. At most `most` adapters are in host memory: those of requests that have not ended, and of others the
    ones used last. Where all are in use, requests wait for their turn, in order of arrival."""

    def __init__(self, call: Call, most: int, in_use: Callable[[], Collection[str]]) -> None:
        """in_use: digests that requests which were handed on may still need."""
        self._call = call
        self._most = most
        self._in_use = in_use
        self._requests: dict[str, tuple[EngineRequest, AdapterSpec]] = {}  # by id, in order of arrival
        self._digests: dict[str, str] = {}  # by path, of those in host memory; the one used last is the last
        self._reading: set[str] = set()  # paths

    def __len__(self) -> int:
        """Requests that wait."""
        return len(self._requests)

    def takes(self, request: EngineRequest) -> bool:
        if request.adapter is None:
            return False
        if request.request_id in self._requests:
            raise InvalidRequestError(f"request_id {request.request_id!r} is already in use", field="request_id")
        self._requests[request.request_id] = (request, request.adapter)
        return True

    def drop(self, request_ids: Iterable[str]) -> list[EngineRequest]:
        return [self._requests.pop(each)[0] for each in request_ids if each in self._requests]

    def ready(self) -> Iterator[Prepared]:
        """Requests whose adapter is in host memory, or cannot be used."""
        if not self._requests:
            return
        failed = self._take_outcomes()
        for request_id, (request, adapter) in list(self._requests.items()):
            if adapter.path in self._digests:
                yield self._hand_on(request_id), NO_CONSTRAINT
            elif adapter.path in failed:
                del self._requests[request_id]
                yield request, Failure(FailureCode.BAD_ADAPTER, failed[adapter.path])
            elif not self._begin(adapter.path):
                return

    def wait(self, seconds: float) -> None:
        time.sleep(min(seconds, _POLL_S))

    def close(self) -> None:
        """The executor keeps what there is."""

    def _hand_on(self, request_id: str) -> EngineRequest:
        request, adapter = self._requests.pop(request_id)
        digest = self._digests.pop(adapter.path)
        self._digests[adapter.path] = digest  # the last is the one used last
        return replace(request, adapter=replace(adapter, digest=digest))

    def _take_outcomes(self) -> dict[str, str]:
        """-> why adapters cannot be used, by path"""
        outcomes: list[AdapterOutcome] = prepared_adapters(self._call) if self._reading else []
        for outcome in outcomes:
            self._reading.remove(outcome.path)
            if not outcome.error:
                self._digests[outcome.path] = outcome.digest
        return {outcome.path: outcome.error for outcome in outcomes if outcome.error}

    def _begin(self, path: str) -> bool:
        """Has it read, if there is room -> whether it is or will be"""
        if path not in self._reading:
            if not self._make_room():
                return False
            self._reading.add(path)
            prepare_adapter(self._call, path)
        return True

    def _make_room(self) -> bool:
        in_use = self._in_use()
        kept = set(self._digests.values())
        while len(kept) + len(self._reading) >= self._most:
            unused = [path for path, digest in self._digests.items() if digest not in in_use]
            if not unused:
                return False
            kept.discard(self._forget(unused[0]))
        return True

    def _forget(self, path: str) -> str:
        digest = self._digests[path]
        for same in [each for each, found in self._digests.items() if found == digest]:
            del self._digests[same]
        forget_adapter(self._call, digest)
        return digest

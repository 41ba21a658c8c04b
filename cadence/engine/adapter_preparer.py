"""Requests with an adapter, until it was read. Others run meanwhile. And calls about adapters."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import Future
from typing import Any, Protocol

from cadence.core.adapter import NO_ADAPTER_DIGEST, AdapterOutcome, AdapterSpec
from cadence.core.contract import control
from cadence.core.contract.control import Verb
from cadence.core.contract.request import EngineRequest
from cadence.core.errors import AdapterError, InvalidRequestError
from cadence.core.failure import Failure, FailureCode
from cadence.engine.intake import Handler, Prepared

_POLL_S = 0.001

Call = Callable[[Verb[Any, Any], Any], Any]  # an executor's


class Slots(Protocol):
    """What the scheduler says of adapters, by their digests."""

    @property
    def count(self) -> int: ...

    @property
    def in_use(self) -> Collection[str]:
        """Those that requests which were handed on may still need."""
        ...

    @property
    def pinned(self) -> Collection[str]: ...

    def serves(self, digest: str) -> bool: ...

    def pin(self, digest: str) -> None: ...

    def unpin(self, digest: str) -> None: ...


class AdapterPreparer:
    """A `Preparer`. At most `most` adapters are in host memory: those of requests that have not ended, pinned ones, and
    of others the ones used last. Where all are in use, requests wait for their turn, in order of arrival."""

    def __init__(self, call: Call, most: int, slots: Slots) -> None:
        self._call = call
        self._most = most
        self._slots = slots
        self._requests: dict[str, tuple[EngineRequest, AdapterSpec]] = {}  # by id, in order of arrival
        self._digests: dict[str, str] = {}  # by path, of those in host memory; the one used last is the last
        self._numbers: dict[int, str] = {}  # paths of those in host memory, by the number that users gave them
        self._pinned: dict[int, str] = {}  # digests, by number
        self._reading: set[str] = set()  # paths
        self._added: dict[str, list[tuple[int, Future[bool]]]] = {}  # (number, the answer when it was read), by path
        self._removed: set[str] = set()  # digests that were in use when they were removed

    def __len__(self) -> int:
        """Requests and calls that wait."""
        return len(self._requests) + len(self._added)

    def takes(self, request: EngineRequest) -> bool:
        adapter = request.attached(AdapterSpec)
        if adapter is None:
            return False
        if request.request_id in self._requests:
            raise InvalidRequestError(f"request_id {request.request_id!r} is already in use", field="request_id")
        self._requests[request.request_id] = (request, adapter)
        return True

    def drop(self, request_ids: Iterable[str]) -> list[EngineRequest]:
        return [self._requests.pop(each)[0] for each in request_ids if each in self._requests]

    def ready(self) -> Iterator[Prepared]:
        """Requests whose adapter is in host memory, or cannot be used."""
        if not len(self):
            return
        failed = self._take_outcomes()
        for request_id, (request, adapter) in list(self._requests.items()):
            if adapter.path in self._digests:
                yield self._hand_on(request_id)
            elif adapter.path in failed:
                del self._requests[request_id]
                yield request, Failure(FailureCode.BAD_ADAPTER, failed[adapter.path])
            elif not self._begin(adapter.path):
                return

    def requests(self) -> list[EngineRequest]:
        return [request for request, _ in self._requests.values()]

    def handlers(self) -> dict[str, Handler]:
        found: dict[str, Handler] = {
            control.ADD_ADAPTER.name: self._add,
            control.REMOVE_ADAPTER.name: self._remove,
            control.PIN_ADAPTER.name: self._pin,
            control.LIST_ADAPTERS.name: self._list,
        }
        return found if self._slots.count else dict.fromkeys(found, _refuse)

    def wait(self, seconds: float) -> None:
        time.sleep(min(seconds, _POLL_S))

    def close(self) -> None:
        """The executor keeps what there is."""

    def _add(self, adapter: AdapterSpec) -> bool | Future[bool]:
        if adapter.path in self._digests:
            self._use(adapter)
            return True
        if not self._begin(adapter.path):
            why = f"{self._most} adapters are in host memory (max_cpu_loras), and all are in use or pinned"
            raise AdapterError(why)
        answer: Future[bool] = Future()
        self._added.setdefault(adapter.path, []).append((adapter.number, answer))
        return answer

    def _pin(self, number: int) -> bool:
        if number not in self._numbers:
            raise InvalidRequestError(f"lora_id {number} is no adapter in host memory: add_lora reads one", "lora_id")
        digest = self._digests[self._numbers[number]]
        try:
            self._slots.pin(digest)
        except InvalidRequestError as error:
            raise InvalidRequestError(f"lora_id {number} cannot be pinned: {error}", field="lora_id") from None
        self._pinned[number] = digest
        return True

    def _list(self, _: None) -> list[int]:
        return sorted(self._numbers)

    def _remove(self, number: int) -> bool:
        """Requests that were handed on keep it; one that comes later has its files read again. -> whether there was
        one"""
        path = self._numbers.pop(number, None)
        if path is None:
            return False
        pinned = self._pinned.pop(number, "")
        if pinned and pinned not in self._pinned.values():
            self._slots.unpin(pinned)
        if path not in self._numbers.values():
            digest = self._digests.pop(path)
            if digest not in self._digests.values():
                self._removed.add(digest)
                self._forget_removed()
        return True

    def _hand_on(self, request_id: str) -> Prepared:
        request, adapter = self._requests.pop(request_id)
        digest = self._use(adapter)
        if adapter.digest not in (NO_ADAPTER_DIGEST, digest):
            why = f"the files of adapter {adapter.name!r} were changed while the engine was restarted: this request"
            return request, Failure(FailureCode.BAD_ADAPTER, f"{why} cannot go on with what it has so far")
        if not self._slots.serves(digest):
            why = f"all {self._slots.count} slots for adapters (max_loras) have pinned ones: adapter {adapter.name!r}"
            return request, Failure(FailureCode.BAD_ADAPTER, f"{why} cannot run")
        return request.with_attachment(adapter.resolved(digest)), {}

    def _use(self, adapter: AdapterSpec) -> str:
        """Of one in host memory -> its digest"""
        digest = self._digests.pop(adapter.path)
        self._digests[adapter.path] = digest  # the last is the one used last
        if adapter.number and adapter.number not in self._pinned:
            self._numbers[adapter.number] = adapter.path
        return digest

    def _take_outcomes(self) -> dict[str, str]:
        """-> why adapters cannot be used, by path"""
        outcomes: list[AdapterOutcome] = self._call(control.PREPARED_ADAPTERS, None) if self._reading else []
        for outcome in outcomes:
            self._reading.remove(outcome.path)
            if not outcome.error:
                self._digests[outcome.path] = outcome.digest
                self._removed.discard(outcome.digest)
            for number, answer in self._added.pop(outcome.path, ()):
                if outcome.error:
                    answer.set_exception(AdapterError(outcome.error))
                else:
                    self._numbers[number] = outcome.path
                    answer.set_result(True)
        return {outcome.path: outcome.error for outcome in outcomes if outcome.error}

    def _begin(self, path: str) -> bool:
        """Has it read, if there is room -> whether it is or will be"""
        if path not in self._reading:
            if not self._make_room():
                return False
            self._reading.add(path)
            self._call(control.PREPARE_ADAPTER, path)
        return True

    def _make_room(self) -> bool:
        self._forget_removed()
        needed = {*self._slots.in_use, *self._slots.pinned}
        kept = {*self._digests.values(), *self._removed}
        while len(kept) + len(self._reading) >= self._most:
            unused = [path for path, digest in self._digests.items() if digest not in needed]
            if not unused:
                return False
            kept.discard(self._forget(unused[0]))
        return True

    def _forget(self, path: str) -> str:
        digest = self._digests[path]
        gone = {each for each, found in self._digests.items() if found == digest}
        self._digests = {each: found for each, found in self._digests.items() if each not in gone}
        self._numbers = {number: each for number, each in self._numbers.items() if each not in gone}
        self._call(control.FORGET_ADAPTER, digest)
        return digest

    def _forget_removed(self) -> None:
        for digest in self._removed - set(self._slots.in_use):
            self._removed.remove(digest)
            self._call(control.FORGET_ADAPTER, digest)


def _refuse(payload: Any) -> Any:
    raise InvalidRequestError("this engine has no adapters: start it with enable_lora", field="lora_id")

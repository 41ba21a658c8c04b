"""Requests that wait for adapters: what is read when, what is forgotten, and in which order requests go on."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import pytest

from cadence.core.adapter import AdapterOutcome, AdapterSpec
from cadence.core.contract.control import (
    ADD_ADAPTER,
    FORGET_ADAPTER,
    LIST_ADAPTERS,
    PIN_ADAPTER,
    PREPARE_ADAPTER,
    REMOVE_ADAPTER,
    Verb,
)
from cadence.core.contract.request import EngineRequest
from cadence.core.errors import AdapterError, InvalidRequestError
from cadence.core.failure import Failure
from cadence.engine.adapter_preparer import AdapterPreparer
from cadence.scheduler.features.adapters.slots import AdapterSlots
from tests.helpers.toy_model import make_request


class Reader:
    """A worker that reads when it is told to; the digest of /a is "a"."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.outcomes: list[AdapterOutcome] = []
        self.kept: set[str] = set()

    def call(self, verb: Verb[Any, Any], payload: Any) -> Any:
        if verb is PREPARE_ADAPTER:
            self.begun.append(payload)
        elif verb is FORGET_ADAPTER:
            self.kept.remove(payload)
        else:
            found, self.outcomes = self.outcomes, []
            return found
        return None

    def finish(self, *paths: str, error: str = "") -> None:
        for path in paths:
            self.begun.remove(path)
            self.outcomes.append(AdapterOutcome(path, "" if error else path[1:], error))
            self.kept |= set() if error else {path[1:]}


class SlotsInUse(AdapterSlots):
    """In use is what a test says."""

    def __init__(self, num_slots: int) -> None:
        super().__init__(num_slots)
        self.said = set[str]()

    @property
    def in_use(self) -> set[str]:  # type: ignore[override]
        return self.said


class World:
    def __init__(self, most: int, slots: int = 2) -> None:
        self.reader, self.slots = Reader(), SlotsInUse(slots)
        self.in_use = self.slots.said
        self.preparer = AdapterPreparer(self.reader.call, most, self.slots)

    def add(self, request_id: str, adapter: str) -> EngineRequest:
        request = make_request(request_id, [5], attachments=(AdapterSpec(adapter, f"/{adapter}"),))
        assert self.preparer.takes(request)
        return request

    def call(self, verb: Verb[Any, Any], payload: Any) -> Any:
        return self.preparer.handlers()[verb.name](payload)

    def order(self, number: int, adapter: str) -> Any:
        """-> whether it was added, or a future of that"""
        return self.call(ADD_ADAPTER, AdapterSpec(adapter, f"/{adapter}", number=number))

    def read(self, number: int, adapter: str) -> bool:
        answer = self.order(number, adapter)
        assert isinstance(answer, Future) and not answer.done() and len(self.preparer) == 1
        self.reader.finish(f"/{adapter}")
        assert self.ready() == [] and not len(self.preparer)
        return bool(answer.result(0))

    def listed(self) -> list[int]:
        return list(self.call(LIST_ADAPTERS, None))

    def ready(self) -> list[str]:
        found = []
        for request, outcome in self.preparer.ready():
            spec = request.attached(AdapterSpec)
            assert spec is not None
            if isinstance(outcome, Failure):
                found.append(f"{request.request_id}: {outcome.message}")
            else:
                found.append(request.request_id)
                self.in_use.add(spec.digest)
        return found


def test_each_goes_on_when_its_adapter_was_read() -> None:
    world = World(most=4)
    assert not world.preparer.takes(make_request("plain", [5]))
    for request_id in ("a1", "b1", "a2", "c1"):
        world.add(request_id, request_id[0])
    assert world.ready() == [] and world.reader.begun == ["/a", "/b", "/c"]
    world.reader.finish("/b")
    assert world.ready() == ["b1"]
    world.reader.finish("/c", error="no such file")
    world.reader.finish("/a")
    assert world.ready() == ["a1", "a2", "c1: no such file"] and not len(world.preparer)
    world.add("a3", "a")
    world.add("c2", "c")
    assert world.ready() == ["a3"] and world.reader.begun == ["/c"], "what failed is tried again"


def test_host_memory_has_a_limit() -> None:
    """What is not in use goes, the oldest use first; where all are in use, the next waits, and those after it."""
    world = World(most=2)
    world.add("a1", "a")
    world.add("b1", "b")
    world.ready()
    world.reader.finish("/a", "/b")
    assert world.ready() == ["a1", "b1"]
    for request_id in ("c1", "a2"):
        world.add(request_id, request_id[0])
    assert world.ready() == [] and world.reader.begun == [], "all are in use"
    world.in_use.remove("a")
    assert world.ready() == [] and world.reader.begun == ["/c"] and world.reader.kept == {"b"}
    world.reader.finish("/c")
    assert world.ready() == ["c1"]
    world.in_use.remove("b")
    world.ready()
    world.reader.finish("/a")
    assert world.ready() == ["a2"] and world.reader.kept == {"a", "c"}


def test_what_was_used_last_stays() -> None:
    """By a request, or by a call."""
    world = World(most=2)
    for number, adapter in ((1, "a"), (2, "b")):
        world.read(number, adapter)
    world.add("a1", "a")
    assert world.ready() == ["a1"]
    world.in_use.clear()
    assert world.read(3, "c") and world.reader.kept == {"a", "c"}
    assert world.order(1, "a") is True
    assert world.read(4, "d") and world.reader.kept == {"a", "d"}


def test_aborted_ones_wait_no_more() -> None:
    world = World(most=2)
    world.add("a1", "a")
    world.ready()
    assert [request.request_id for request in world.preparer.drop(["a1", "x"])] == ["a1"]
    world.reader.finish("/a")
    assert world.ready() == [] and not len(world.preparer)
    world.add("a2", "a")
    assert world.ready() == ["a2"]


def test_adapters_are_added_listed_and_removed() -> None:
    world = World(most=2)
    assert world.read(7, "a") and world.listed() == [7]
    assert world.order(8, "a") is True, "it is there, under another number too"
    world.add("a1", "a")
    assert world.ready() == ["a1"] and world.reader.begun == []
    answer = world.order(9, "c")
    world.reader.finish("/c", error="no such file")
    world.ready()
    with pytest.raises(AdapterError, match="no such file"):
        answer.result(0)
    assert world.listed() == [7, 8]
    assert world.call(REMOVE_ADAPTER, 7) is True and world.listed() == [8]
    assert world.call(REMOVE_ADAPTER, 8) is True and world.listed() == []
    assert world.call(REMOVE_ADAPTER, 8) is False
    assert world.reader.kept == {"a"}, "a request has it"
    world.add("a2", "a")
    assert world.ready() == [] and world.reader.begun == ["/a"], "its files are read again"
    world.reader.finish("/a")
    assert world.ready() == ["a2"]
    world.order(8, "a")
    world.in_use.clear()
    world.call(REMOVE_ADAPTER, 8)
    assert world.reader.kept == set()


def test_pinned_ones_stay() -> None:
    world = World(most=3, slots=2)
    world.read(1, "a")
    assert world.call(PIN_ADAPTER, 1) is True
    for number, adapter in enumerate("bcde", 2):
        assert world.read(number, adapter)
    assert world.reader.kept == {"a", "d", "e"} and world.listed() == [1, 4, 5]
    with pytest.raises(InvalidRequestError, match=r"lora_id 2 .*add_lora"):
        world.call(PIN_ADAPTER, 2)
    assert world.call(PIN_ADAPTER, 4) is True
    with pytest.raises(InvalidRequestError, match=r"lora_id 5 .*2 slots"):
        world.call(PIN_ADAPTER, 5)
    for request_id in ("a1", "e1"):
        world.add(request_id, request_id[0])
    first, second = world.ready()
    assert first == "a1" and "all 2 slots" in second and "'e'" in second, "it would wait for ever"
    assert world.read(6, "f") and world.reader.kept == {"a", "d", "f"}
    world.in_use.add("f")
    with pytest.raises(AdapterError, match=r"max_cpu_loras.*pinned"):
        world.order(7, "g")
    world.in_use.clear()
    world.call(REMOVE_ADAPTER, 4)
    world.add("f1", "f")
    assert world.ready() == ["f1"], "a slot is free again"


def test_calls_need_slots() -> None:
    with pytest.raises(InvalidRequestError, match="enable_lora"):
        World(most=0, slots=0).call(LIST_ADAPTERS, None)


def test_a_request_goes_on_with_the_adapter_it_had() -> None:
    """One that was written with other files, by an engine that died, does not."""
    world = World(most=2)
    for request_id, digest in (("new", ""), ("same", "a"), ("other", "b")):
        spec = AdapterSpec("sql", "/a", digest)
        assert world.preparer.takes(make_request(request_id, [5], attachments=(spec,)))
    world.ready()
    world.reader.finish("/a")
    new, same, other = world.ready()
    assert (new, same) == ("new", "same")
    assert "the files of adapter 'sql' were changed" in other and "cannot go on" in other

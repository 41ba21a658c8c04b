"""The desk of requests with adapters: what is read when, what is forgotten, and in which order requests go on."""

from __future__ import annotations

from typing import Any

from cadence.core.adapter import AdapterOutcome, AdapterSpec
from cadence.core.failure import Failure
from cadence.core.request import EngineRequest
from cadence.engine.adapter_desk import AdapterDesk
from tests.helpers.toy_model import make_request


class Reader:
    """A worker that reads when it is told to; the digest of /a is "a"."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.outcomes: list[AdapterOutcome] = []
        self.kept: set[str] = set()

    def call(self, verb: str, payload: Any) -> Any:
        if verb == "prepare_adapter":
            self.begun.append(payload)
        elif verb == "forget_adapter":
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


class World:
    def __init__(self, most: int) -> None:
        self.reader, self.in_use = Reader(), set[str]()
        self.desk = AdapterDesk(self.reader.call, most, lambda: self.in_use)

    def add(self, request_id: str, adapter: str) -> EngineRequest:
        request = make_request(request_id, [5], adapter=AdapterSpec(adapter, f"/{adapter}"))
        assert self.desk.takes(request)
        return request

    def ready(self) -> list[str]:
        found = []
        for request, outcome in self.desk.ready():
            assert request.adapter is not None
            if isinstance(outcome, Failure):
                found.append(f"{request.request_id}: {outcome.message}")
            else:
                found.append(request.request_id)
                self.in_use.add(request.adapter.digest)
        return found


def test_each_goes_on_when_its_adapter_was_read() -> None:
    world = World(most=4)
    assert not world.desk.takes(make_request("plain", [5]))
    for request_id in ("a1", "b1", "a2", "c1"):
        world.add(request_id, request_id[0])
    assert world.ready() == [] and world.reader.begun == ["/a", "/b", "/c"]
    world.reader.finish("/b")
    assert world.ready() == ["b1"]
    world.reader.finish("/c", error="no such file")
    world.reader.finish("/a")
    assert world.ready() == ["a1", "a2", "c1: no such file"] and not len(world.desk)
    world.add("a3", "a")
    world.add("c2", "c")
    assert world.ready() == ["a3"] and world.reader.begun == ["/c"], "what failed is tried again"


def test_host_memory_has_a_limit() -> None:
    """What is not in use goes, the oldest use first; where all are in use, the next waits, and those behind it."""
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


def test_aborted_ones_wait_no_more() -> None:
    world = World(most=2)
    world.add("a1", "a")
    world.ready()
    assert [request.request_id for request in world.desk.drop(["a1", "x"])] == ["a1"]
    world.reader.finish("/a")
    assert world.ready() == [] and not len(world.desk)
    world.add("a2", "a")
    assert world.ready() == ["a2"]

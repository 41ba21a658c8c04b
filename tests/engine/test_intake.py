"""Requests that have to be prepared by several, one after another."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from cadence.core.contract.request import EngineRequest
from cadence.core.failure import Failure, FailureCode
from cadence.engine.intake import Intake, Prepared
from tests.helpers.toy_model import make_request

BROKEN = Failure(FailureCode.BAD_ADAPTER, "no such file")


class Step:
    """Takes requests whose id has its letter, and hands them on when it is told to."""

    def __init__(self, letter: str) -> None:
        self.letter = letter
        self.failure: Failure | None = None
        self.is_open = False
        self.closed = False
        self.waited = 0.0
        self._requests: dict[str, EngineRequest] = {}

    def __len__(self) -> int:
        return len(self._requests)

    def takes(self, request: EngineRequest) -> bool:
        if self.letter in request.request_id:
            self._requests[request.request_id] = request
        return self.letter in request.request_id

    def drop(self, request_ids: Iterable[str]) -> list[EngineRequest]:
        return [self._requests.pop(each) for each in request_ids if each in self._requests]

    def ready(self) -> Iterator[Prepared]:
        if self.is_open:
            for request in self.requests():
                del self._requests[request.request_id]
                yield request, self.failure or {self.letter: len(request.request_id)}

    def requests(self) -> list[EngineRequest]:
        return list(self._requests.values())

    def wait(self, seconds: float) -> None:
        self.waited += seconds

    def close(self) -> None:
        self.closed = True


def opened() -> tuple[list[Step], Intake]:
    steps = [Step(letter) for letter in "abc"]
    return steps, Intake(steps)


def names(found: Iterable[Prepared]) -> list[tuple[str, object]]:
    return [(request.request_id, outcome) for request, outcome in found]


def test_a_request_goes_through_all_that_take_it_and_keeps_what_each_has_prepared() -> None:
    steps, intake = opened()
    assert not intake.takes(make_request("x", [1]))
    for name in ("abc", "ac", "b"):
        assert intake.takes(make_request(name, [1]))
    assert len(intake) == 3 and names(intake.ready()) == []
    steps[2].is_open = True
    steps[0].is_open = True
    assert names(intake.ready()) == [("ac", {"a": 2, "c": 2})], "the others are with the second"
    assert [request.request_id for request in intake.requests()] == ["b", "abc"]
    steps[1].is_open = True
    assert names(intake.ready()) == [("b", {"b": 1}), ("abc", {"a": 3, "b": 3, "c": 3})] and not len(intake)


def test_a_request_that_fails_on_its_way_goes_no_further() -> None:
    steps, intake = opened()
    intake.takes(make_request("abc", [1]))
    steps[0].is_open = steps[1].is_open = True
    steps[1].failure = BROKEN
    assert names(intake.ready()) == [("abc", BROKEN)] and not len(intake)


def test_what_was_prepared_for_a_request_goes_with_it_when_it_is_dropped() -> None:
    steps, intake = opened()
    intake.takes(make_request("ab", [1]))
    steps[0].is_open = True
    assert names(intake.ready()) == []
    assert [request.request_id for request in intake.drop(["ab", "unknown"])] == ["ab"] and not len(intake)
    steps[0].is_open, steps[1].is_open = False, True
    steps[1].takes(make_request("ab", [1]))
    assert names(intake.ready()) == [("ab", {"b": 2})], "a request of the same id begins anew"


def test_the_last_one_with_something_under_way_is_waited_for() -> None:
    steps, intake = opened()
    intake.wait(1.0)
    intake.takes(make_request("a", [1]))
    intake.takes(make_request("b", [1]))
    intake.wait(0.5)
    assert [step.waited for step in steps] == [0.0, 0.5, 0.0]
    intake.close()
    assert all(step.closed for step in steps)

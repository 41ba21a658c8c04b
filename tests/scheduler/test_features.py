"""Features beside the scheduler: who is asked, in which order, and that they stay out of each other's way."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from cadence.core.adapter import AdapterSpec
from cadence.core.contract.step import StepPlan, StepResult
from cadence.core.errors import InvalidRequestError
from cadence.scheduler.feature import Books, Decodes, HostFeature, with_own
from cadence.scheduler.news import News
from cadence.scheduler.plan import PlanDraft
from cadence.scheduler.request_state import OrderKey, RequestState
from cadence.scheduler.scheduler import Scheduler
from cadence.scheduler.step_in_flight import StepInFlight
from tests.helpers.toy_engine import begun, make_cache, make_config, result_of
from tests.helpers.toy_model import make_layout, make_request


class Quiet(HostFeature):
    """Has nothing of its own."""

    name = "quiet"


class Noted(HostFeature):
    """Writes down when it is asked, and says something of rows with its letter in their request's id."""

    def __init__(self, name: str, asked: list[str]) -> None:
        self.name = name
        self._asked = asked

    def begin(self, request: RequestState, draft: PlanDraft) -> int | None:
        return request.row if self.name in request.id else None

    def widen(self, draft: PlanDraft, books: Books, decodes: Decodes) -> None:
        self._asked.append(f"plan {self.name}")

    def reconcile(self, step: StepInFlight, result: StepResult, news: News, books: Books) -> None:
        self._asked.append(f"result {self.name}")


class Gate(HostFeature):
    """Holds back requests with its letter in their ids until it is opened."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.released: list[str] = []
        self._is_open = False

    def open(self) -> None:
        self._is_open = True
        self.changes += 1

    def holds(self, request: RequestState) -> str:
        return self.name if self.name in request.id and not self._is_open else ""

    def recall(self, waiting: Iterable[tuple[OrderKey, str]]) -> list[str]:
        return [text for _, text in waiting]

    def release(self, request: RequestState) -> None:
        assert request.row >= 0, "the row is still its own"
        self.released.append(request.id)


def make_scheduler(*features: HostFeature) -> Scheduler:
    return Scheduler(make_config(), make_cache(4), make_layout((0,), 4), 60, 40, features)


def step(scheduler: Scheduler) -> StepPlan:
    plan = scheduler.schedule()
    if len(plan.rows_np):
        scheduler.update(result_of(plan))
    return plan


def test_results_are_shown_in_the_reverse_order_of_plans() -> None:
    asked: list[str] = []
    scheduler = make_scheduler(Noted("a", asked), Quiet(), Noted("b", asked))
    scheduler.add(make_request("x", [1, 2], 3))
    step(scheduler)
    assert asked == ["plan a", "plan b", "result b", "result a"]


def test_rows_carry_what_features_say_of_them_and_nothing_of_others() -> None:
    scheduler = make_scheduler(Noted("a", []), Quiet(), Noted("b", []))
    for request_id in ("ab", "b", "x"):
        scheduler.add(make_request(request_id, [1, 2], 3))
    rows = {new.request_id: new for new in step(scheduler).begun}
    assert {name: dict(new.payloads) for name, new in rows.items()} == {
        "ab": {"a": rows["ab"].row, "b": rows["ab"].row},
        "b": {"b": rows["b"].row},
        "x": {},
    }


def test_requests_that_two_features_hold_back_wait_for_both() -> None:
    first, second = Gate("a"), Gate("b")
    scheduler = make_scheduler(first, second)
    for request_id in ("ab", "a", "b", "x"):
        scheduler.add(make_request(request_id, [1], 1))
    assert begun(step(scheduler)) == ["x"] and scheduler.stats().num_waiting == 3
    first.open()
    assert begun(step(scheduler)) == ["a"]
    second.open()
    assert begun(step(scheduler)) == ["ab", "b"] and not scheduler.has_unfinished()
    assert first.released == second.released == ["x", "a", "ab", "b"]


def test_only_features_with_a_method_of_their_own_are_asked() -> None:
    noted = Noted("a", [])
    assert with_own([Quiet(), noted], "widen") == [noted] and with_own([Quiet(), noted], "mail") == []


def test_what_no_feature_is_there_for_is_refused() -> None:
    scheduler = make_scheduler(Quiet())
    with pytest.raises(InvalidRequestError, match="enable_lora"):
        scheduler.add(make_request("x", [1], attachments=(AdapterSpec("sql", "/sql", "digest"),)))

"""The host half of a feature, as the scheduler knows it.

The scheduler holds a list of them, in the order in which they are asked, and names none. `core/contract/features.py`
has the types of the payloads that they exchange with their device halves.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from cadence.core.contract.request import EngineRequest
from cadence.core.contract.step import StepPlan, StepResult
from cadence.core.contract.update import RequestUpdate
from cadence.scheduler.budget import TokenBudget
from cadence.scheduler.kv.manager import KVManager, PrefixHit
from cadence.scheduler.news import News
from cadence.scheduler.plan import PlanDraft
from cadence.scheduler.request_state import OrderKey, RequestState
from cadence.scheduler.rows import Column, RowTable
from cadence.scheduler.step_in_flight import StepInFlight


@dataclass(frozen=True, slots=True)
class Books:
    """What features may see of the scheduler."""

    rows: RowTable
    kv: KVManager
    budget: TokenBudget


@dataclass(slots=True)
class Decodes:
    """Running rows [n] of a plan that is being drawn up."""

    rows_np: Column  # [n]
    tokens_np: Column  # [n] tokens that each computes, without drafts; 1: it decodes
    drafts_np: Column  # [n] drafts of each, if it decodes: features write here
    waiting: bool  # others may be admitted to the step


class HostFeature:
    """Every method does nothing by default, and is called only where a feature has its own."""

    name: str  # of its line in `FEATURES`; its stats are the field of that name of `EngineStats`
    computes: bool = False  # what it sends with a plan takes the device time of its own
    changes: int = 0  # counts what may let requests in that `holds` has held back

    def join(self, request: RequestState) -> None:
        """It has come to the waiting queue."""

    def leave(self, request: RequestState) -> None:
        """It has ended. A row that it has is released later."""

    def holds(self, request: RequestState) -> str:
        """-> "", or it may have no row now and waits aside, together with others of the same text."""
        return ""

    def recall(self, waiting: Iterable[tuple[OrderKey, str]]) -> list[str]:
        """Something has changed for requests that wait aside, by their texts, each with the key of its oldest request,
        oldest first -> the texts of those that should be looked at again."""
        return []

    def admits(self, request: RequestState, hit: PrefixHit, draft: PlanDraft) -> bool:
        """Whether the plan has room for what the request brings; else it and all after it wait for the next one. A plan
        in which no row has begun has room for any."""
        return True

    def longest_hit(self, hashes: Sequence[bytes], limit: int) -> int:
        """Most leading blocks of a prompt, at most `limit`, whose keys are cached, after which it can go on with what
        the feature has. hashes: digests of the prefixes that end with each"""
        return limit

    def forget(self, request: RequestState | None) -> None:
        """What it has kept of a request's prefixes is not trusted; None: of all requests."""

    @property
    def cut_rows(self) -> Iterable[int]:
        """Running rows of whose prompts `cut` may have something to say."""
        return ()

    def cut(self, draft: PlanDraft, request: RequestState, start: int, end: int, most: int) -> int:
        """The plan is to compute tokens [start, end) of a request, running or about to begin -> how far it goes. `most`
        is the furthest that there are tokens left for."""
        return end

    def begin(self, request: RequestState, draft: PlanDraft) -> Any:
        """It takes a row -> what the device is told of the row; None = it does not use the feature"""
        return None

    def admitted(self, draft: PlanDraft, request: RequestState, end: int) -> None:
        """It has begun, and the plan computes its tokens up to `end`."""

    def widen(self, draft: PlanDraft, books: Books, decodes: Decodes) -> None:
        """Rows that decode may have drafts in the plan's first forward."""

    def booked(self, draft: PlanDraft, books: Books, decodes: Decodes) -> None:
        """These running rows are in the plan, and their tokens are booked."""

    def dropped(self, draft: PlanDraft) -> None:
        """No row computes anything in this step after all, so that no device hears of the plan. The next one has the
        same number."""

    def extend(self, draft: PlanDraft, books: Books) -> None:
        """All rows of the plan's first forward are known; those that follow may be wider."""

    def mail(self, step: StepInFlight, books: Books) -> tuple[Any, list[RequestUpdate]]:
        """All steps before it have returned -> what rows of the step wait for, and the ends of requests that cannot go
        on"""
        return None, []

    def reconcile(self, step: StepInFlight, result: StepResult, news: News, books: Books) -> None:
        """A part of a step has come: `news` have its tokens, by row. Features are asked in reverse: the last one to
        shape a plan is the first to see what came of it."""

    def observe_time(self, plan: StepPlan, seconds: float, num_verified: int) -> None:
        """A plan of decodes alone took so long, and verified so many lines in all rows together."""

    def release(self, request: RequestState) -> None:
        """The last step naming its row has returned."""

    def stats(self, requests: Iterable[RequestState], preparing: Sequence[EngineRequest]) -> Any:
        """Of all requests that have not ended, and of those that will be added; None = it has none"""
        return None


def with_own(features: Sequence[HostFeature], method: str) -> list[HostFeature]:
    """Those of the features that do something in this method."""
    return [each for each in features if getattr(type(each), method) is not getattr(HostFeature, method)]

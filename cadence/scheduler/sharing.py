"""Before a plan is drawn up, while several tenants have requests: who goes first, and who makes way.

Running requests are put in the order of what their tenants have had, the least first. If the next request to be
admitted is of a tenant that has had less than others, then
- prompts of those others sit the step out, and it begins in this step;
- where no row or too few blocks are free for it, the last of those others gives up its own, as long as its tenant has
  more of them than its share and the other tenant has less. A request makes way once: however tenants take turns, it
  comes to its end.

Prompts of tenants that have had clearly more than another, which has requests or had lately, are brief
(`PromptRoom.shorten`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from cadence.scheduler.admission import Admission
from cadence.scheduler.feature import Books
from cadence.scheduler.preempt import Preemption
from cadence.scheduler.queue import WaitingQueue
from cadence.scheduler.request_state import NO_ROW, RequestState
from cadence.scheduler.retiring import Retiring
from cadence.scheduler.running import RunningList
from cadence.scheduler.shares import NoShares


def _none(request: RequestState) -> bool:
    return False


@dataclass(frozen=True, slots=True)
class Precedence:
    """Which prompts make way for others in a step."""

    yields: Callable[[RequestState], bool] = _none  # a running one sits the step out
    is_brief: Callable[[RequestState], bool] = _none

    @property
    def some_yield(self) -> bool:
        return self.yields is not _none

    @property
    def is_shared(self) -> bool:
        """A tenant may be waiting for the step's end, or be about to."""
        return self.is_brief is not _none

    def without_yielding(self) -> Precedence:
        return Precedence(is_brief=self.is_brief)


NO_PRECEDENCE = Precedence()


class Sharing:
    def __init__(
        self,
        shares: NoShares,
        books: Books,
        waiting: WaitingQueue,
        running: RunningList,
        preemption: Preemption,
        retiring: Retiring,
    ) -> None:
        self._shares = shares
        self._waiting = waiting
        self._running = running
        self._rows = books.rows
        self._kv = books.kv
        self._preemption = preemption
        self._retiring = retiring

    def arrange(self, admission: Admission) -> Precedence:
        had = self._shares.had
        self._running.arrange(lambda request: had(request.request.tenant))
        brief = Precedence(is_brief=lambda request: self._shares.is_ahead(request.request.tenant))
        if not admission.has_next:
            return brief
        following = self._waiting.peek()
        if following.row != NO_ROW:
            return brief  # preempted, and a step naming its old row is still in flight
        refused = admission.was_refused(following)
        if refused or not self._rows.num_free:
            self._make_way(following, self._blocks_of if refused else self._rows_of)
        if admission.was_refused(following) or not self._rows.num_free:
            return brief
        next_had = had(following.request.tenant)
        return Precedence(lambda request: had(request.request.tenant) > next_had, brief.is_brief)

    def _make_way(self, following: RequestState, held: Callable[[str], float]) -> None:
        """held: share of what is lacking that a tenant's running requests have, 0 to 1. What steps in flight will give
        back is waited for first."""
        if self._retiring or not self._running:
            return
        tenant, other = following.request.tenant, self._running[-1].request.tenant
        share = self._shares.share
        if other == tenant or held(other) <= share(other) or held(tenant) >= share(tenant):
            return
        own = [request for request in self._running if request.request.tenant == other and not request.made_way]
        if own:
            own[-1].made_way = True
            self._preemption.preempt(own[-1])

    def _rows_of(self, tenant: str) -> float:
        return sum(request.request.tenant == tenant for request in self._running) / self._rows.count

    def _blocks_of(self, tenant: str) -> float:
        own = (request.blocks for request in self._running if request.request.tenant == tenant)
        return sum(map(self._kv.held_alone, own)) / self._kv.num_usable

"""The loop: plan, queue, finish the oldest step in flight."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from cadence.core.engine_state import EngineState
from cadence.core.errors import EngineDeadError
from cadence.core.request import EngineRequest, FinishReason
from cadence.core.step import StepPlan, StepResult
from cadence.core.update import RequestUpdate
from cadence.executor.base import Executor, Ticket
from cadence.scheduler.scheduler import Scheduler
from cadence.scheduler.stats import SchedulerStats


class EngineCore:
    """Tokens in, tokens out. Knows neither text nor the device.

    `depth` steps may be in flight: 1 plans only with everything known, 2 plans step N+1 while N runs.
    All depths give the same tokens.
    """

    def __init__(self, scheduler: Scheduler, executor: Executor, depth: int) -> None:
        self._scheduler = scheduler
        self._executor = executor
        self._depth = depth
        self._in_flight: deque[tuple[StepPlan, Ticket]] = deque()
        self._outbox: list[RequestUpdate] = []
        self._death: str = ""

    def add(self, request: EngineRequest) -> None:
        self._check_alive()
        self._scheduler.add(request)

    def abort(self, request_ids: Iterable[str], reason: FinishReason = FinishReason.ABORT) -> None:
        self._outbox.extend(self._scheduler.abort(request_ids, reason))

    def step(self) -> list[RequestUpdate]:
        self._check_alive()
        plan = self._scheduler.schedule()
        has_work = len(plan.rows_np) > 0
        if has_work:
            self._in_flight.append((plan, self._launch(plan)))
        if self._in_flight and (len(self._in_flight) >= self._depth or not has_work):
            plan, ticket = self._in_flight.popleft()
            self._outbox.extend(self._scheduler.update(plan, self._finish(ticket)))
        updates, self._outbox = self._outbox, []
        return updates

    def has_unfinished(self) -> bool:
        return bool(self._outbox) or self._scheduler.has_unfinished()

    def reset_prefix_cache(self) -> bool:
        return self._scheduler.reset_prefix_cache()

    def snapshot(self, with_blocks: bool) -> EngineState:
        return self._scheduler.snapshot(with_blocks)

    def stats(self) -> SchedulerStats:
        return self._scheduler.stats()

    def _launch(self, plan: StepPlan) -> Ticket:
        try:
            return self._executor.step(plan)
        except Exception as error:
            self._death = f"{type(error).__name__}: {error}"
            raise

    def _finish(self, ticket: Ticket) -> StepResult:
        try:
            return ticket.result()
        except Exception as error:
            self._death = f"{type(error).__name__}: {error}"
            raise

    def _check_alive(self) -> None:
        if self._death:
            raise EngineDeadError(f"the engine stopped after an error in a step: {self._death}")

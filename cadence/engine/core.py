"""The loop: plan, queue, finish the oldest step in flight."""

from __future__ import annotations

import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from typing import Any

from cadence.core.contract.control import PAUSE, RESET_ENCODER_CACHE, RESET_PREFIX_CACHE, STATE, A, P, Verb, Where
from cadence.core.contract.engine_state import EngineState, EngineStats
from cadence.core.contract.forward_counts import ForwardCounts
from cadence.core.contract.request import EngineRequest, FinishReason
from cadence.core.contract.step import StepResult
from cadence.core.contract.update import RequestUpdate, TokenUpdates
from cadence.core.errors import CadenceError, EngineDeadError, InvalidRequestError
from cadence.core.failure import Failure
from cadence.engine.intake import Handler, Intake
from cadence.executor.interface.base import Executor
from cadence.scheduler.scheduler import Scheduler
from cadence.scheduler.step_in_flight import StepInFlight

_PREPARING_S = 0.002  # most that a new request waits while others are prepared and nothing runs


class EngineCore:
    """Tokens in, tokens out. Knows neither text nor the device.

    `depth` steps may be in flight: 1 plans only with everything known, 2 plans step N+1 while N runs. A step may be a
    burst of several forwards, whose tokens come one part after the other. All depths and bursts give the same tokens.
    """

    def __init__(self, scheduler: Scheduler, executor: Executor, intake: Intake, depth: int, queues_work: bool) -> None:
        """queues_work: as `OpenExecutor` has it."""
        self._scheduler = scheduler
        self._intake = intake
        self._executor = executor
        self._depth = depth
        self._queues_work = queues_work
        self._in_flight: deque[StepInFlight] = deque()
        self._last_return = 0.0  # seconds, when the last step came back
        self._outbox: list[RequestUpdate] = []
        self._forwards = ForwardCounts()
        self._held: set[str] = set()  # why no step begins
        self._death: str = ""
        self._handlers: dict[str, Handler] = {  # of verbs that are carried out here, by name
            STATE.name: self.snapshot,
            RESET_PREFIX_CACHE.name: self._reset_prefix_cache,
            PAUSE.name: self._pause,
            **intake.handlers,
        }

    def add(self, request: EngineRequest, engine: int | None = None) -> None:
        """engine: this one, where several could be meant"""
        self._check_alive()
        self._scheduler.check(request)
        if not self._intake.takes(request):
            self._scheduler.join(request)

    def abort(self, request_ids: Iterable[str], reason: FinishReason = FinishReason.ABORT) -> None:
        request_ids = list(request_ids)
        dropped = self._intake.drop(request_ids)
        self._outbox.extend(RequestUpdate.end(request.request_id, reason) for request in dropped)
        self._outbox.extend(self._scheduler.abort(request_ids, reason))

    def call(self, verb: Verb[P, A], payload: P) -> Future[A]:
        """Carries out a verb, here or on the ranks. An answer that takes longer comes in a `step` or in `prepare`. An
        error that is raised here, and is not in the answer, ends the engine."""
        self._check_alive()
        handler: Handler = partial(self._executor.call, verb)
        if verb.at is Where.ENGINE:
            handler = self._handlers.get(verb.name, _refuse)
        answer: Future[A] = Future()
        try:
            found = handler(payload)
        except EngineDeadError:
            raise
        except CadenceError as error:
            answer.set_exception(error)
            return answer
        if isinstance(found, Future):
            return found
        answer.set_result(found)
        return answer

    def handle(self, verb: Verb[Any, Any], handler: Handler) -> None:
        """From now on `handler` carries out this verb."""
        self._handlers[verb.name] = handler

    def prepare(self) -> None:
        """For callers that wait for an answer: takes in what was prepared, and computes nothing."""
        self._take_prepared()
        self._intake.wait(_PREPARING_S)

    def step(self) -> list[RequestUpdate]:
        """Launches a step if one more may be in flight, and takes in one part of the oldest one."""
        self._check_alive()
        self._take_prepared()
        has_work = self._is_full or (not self._held and self._launch_next())
        if self._in_flight and (self._is_full or not has_work):
            self._take_in(self._in_flight[0])
        elif not has_work and self._intake:
            self._intake.wait(_PREPARING_S)
        return self.take_ended()

    def take_ended(self) -> list[RequestUpdate]:
        """Updates that wait for the next `step`, such as those of aborted requests."""
        updates, self._outbox = self._outbox, []
        return updates

    def take_tokens(self) -> TokenUpdates:
        """Tokens of requests that go on, by number, from the steps so far: for callers that ask after every `step`.
        They come before what updates say of the same requests."""
        return self._scheduler.take_tokens()

    def _take_prepared(self) -> None:
        for request, outcome in self._intake.ready():
            if isinstance(outcome, Failure):
                self._outbox.append(RequestUpdate.end(request.request_id, FinishReason.ERROR, outcome))
            else:
                self._scheduler.add(request, outcome)

    def begin(self) -> None:
        """For callers with more requests to add: the device starts on those it has, if they fill a step. A device that
        is run by the calling thread (depth 1) would only keep the caller waiting."""
        self._check_alive()
        if self._depth > 1 and not self._held and not self._is_full and self._scheduler.fills_step():
            self._launch_next()

    @property
    def is_held(self) -> bool:
        """No step begins."""
        return bool(self._held)

    @property
    def _is_full(self) -> bool:
        """No step may be launched before one has returned: `depth` are in flight, or the newest waits for mail."""
        steps = self._in_flight
        return len(steps) >= self._depth or bool(steps and steps[-1].awaits_mail)

    def _launch_next(self) -> bool:
        """-> whether there was anything to do"""
        plan = self._scheduler.schedule()
        if not len(plan.rows_np):
            return False
        if self._in_flight:
            newest = self._in_flight[-1]
            self._advance(newest, newest.num_forwards - newest.num_queued)  # before the next plan moves its rows
        step = self._scheduler.in_flight(plan.step_id)
        step.launched = time.perf_counter()  # a CPU computes in the launch
        self._begin(step)
        self._in_flight.append(step)
        self._post()
        return True

    def _post(self) -> None:
        """The mail that the oldest step waits for: with those before it back, the host knows what to write."""
        if not (self._in_flight and self._in_flight[0].awaits_mail):
            return
        step = self._in_flight[0]
        mail, ended = self._scheduler.mail(step)
        self._outbox.extend(ended)
        try:
            self._executor.post(step.plan.step_id, mail)
        except Exception as error:
            self._die(error)
            raise
        step.awaits_mail = False

    def _take_in(self, step: StepInFlight) -> None:
        """One part of the oldest step, unless it ends here: a burst is cut before more of it is computed, where
        something else has become more urgent."""
        if step.is_idle:
            if self._cut_if_wanted(step):
                return
            self._advance(step, min(step.plan.num_together, step.num_forwards - step.num_queued))
        result = self._result()
        self._count(step, len(result.token_ids_np))
        self._outbox.extend(self._scheduler.update(result))
        if step.has_returned:
            self._in_flight.popleft()
            now = time.perf_counter()
            self._scheduler.observe_time(step.plan, now - max(step.launched, self._last_return), step.num_verified)
            self._last_return = now
            self._post()
        elif step.is_idle:
            self._cut_if_wanted(step)

    def _count(self, step: StepInFlight, forwards: int) -> None:
        """The first forward of a step has its prompts; each after it has the tokens of rows that decode."""
        if not step.num_returned:
            self._forwards.add(step.plan.total_tokens)
            forwards -= 1
        if forwards:
            self._forwards.add(len(step.plan.rows_np) * step.plan.width, forwards)

    def _cut_if_wanted(self, step: StepInFlight) -> bool:
        """Of an idle step -> whether it is over"""
        if len(self._in_flight) > 1 or not self._scheduler.wants_cut(step):
            return False
        self._scheduler.cut(step)
        self._in_flight.popleft()
        self._last_return = time.perf_counter()
        return True

    def _pause(self, paused: bool) -> None:
        self.hold(PAUSE.name, paused)

    def hold(self, why: str, is_held: bool) -> None:
        """While something holds it no step begins: requests keep their rows and blocks. Steps in flight come to their
        end."""
        (self._held.add if is_held else self._held.discard)(why)

    def empty(self) -> None:
        """Takes in what is in flight and preempts what runs: no row is in use, and nothing that was computed is found
        again."""
        self._reset_prefix_cache(True)
        if forget := self._handlers.get(RESET_ENCODER_CACHE.name):
            forget(None)

    def call_ranks(self, verb: Verb[P, A], payload: P, *, may_fail: bool = True) -> A:
        """may_fail: else this engine ends of what is raised"""
        try:
            return self._executor.call(verb, payload)
        except Exception as error:
            if not may_fail:
                self._die(error)
            raise

    def apply(self, function: Callable[[Any], Any]) -> Any:
        """Calls it with what carries out messages, which is in this process; nothing is in flight."""
        self._check_alive()
        while self._in_flight:
            self._take_in(self._in_flight[0])
        return function(self._executor)

    def has_unfinished(self) -> bool:
        """Whether a step has something to do; of a paused engine, only what is in flight."""
        computes = bool(self._in_flight) if self._held else self._scheduler.has_unfinished()
        return bool(self._outbox) or bool(self._intake) or computes

    def check(self) -> None:
        """Raises if the device half is gone; steps raise by themselves."""
        self._executor.check()

    def _reset_prefix_cache(self, reset_running_requests: bool) -> bool:
        while self._in_flight:  # of requests that have ended, as a rule
            self._take_in(self._in_flight[0])
        return self._scheduler.reset_prefix_cache(reset_running_requests)

    def snapshot(self, with_blocks: bool) -> EngineState:
        return replace(self._scheduler.snapshot(with_blocks), stats=self.stats())

    def stats(self) -> EngineStats:
        forwards, stats = self._forwards, self._scheduler.stats(self._intake.requests())
        busy = tuple(self._executor.busy_seconds())
        return replace(stats, forward_counts=tuple(forwards.counts), forward_tokens=forwards.tokens, busy_seconds=busy)

    def stats_by_engine(self) -> list[EngineStats]:
        return [self.stats()]

    def close(self) -> None:
        """Gives back all that the device holds. Nothing may be called afterwards."""
        self._in_flight.clear()
        self._executor.stop()
        self._intake.close()
        self._handlers.clear()
        del self._scheduler, self._executor, self._intake  # an exception of a step, kept by a caller, holds this object

    def _begin(self, step: StepInFlight) -> None:
        try:
            self._executor.step(step.plan)
        except Exception as error:
            self._die(error)
            raise
        self._advance(step, step.num_forwards if self._queues_work else step.plan.num_together)

    def _advance(self, step: StepInFlight, count: int) -> None:
        if not count:
            return
        try:
            self._executor.advance(step.plan.step_id, step.num_queued, count)
        except Exception as error:
            self._die(error)
            raise
        step.num_queued += count

    def _result(self) -> StepResult:
        try:
            return self._executor.result()
        except Exception as error:
            self._die(error)
            raise

    def _die(self, error: Exception) -> None:
        self._death = f"{type(error).__name__}: {error}"
        _forget_locals(error)

    def _check_alive(self) -> None:
        if self._death:
            raise EngineDeadError(f"the engine stopped after an error in a step: {self._death}")


def _refuse(payload: Any) -> Any:
    raise InvalidRequestError("this engine carries out no such call")


def _forget_locals(error: BaseException) -> None:
    """The frames an error came through on the device hold the model, which a caller must not keep with the error."""
    found: BaseException | None = error
    while found is not None:
        traceback.clear_frames(found.__traceback__)  # all but those that still run
        found = found.__cause__ or found.__context__

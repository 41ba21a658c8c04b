"""The engine process's loop: commands in, a step, updates out."""

from __future__ import annotations

import logging
import time
from collections import deque
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import msgspec

from cadence.core.contract.codec import answer_to, decode_request, payload_of
from cadence.core.contract.control import CONTROL, JOIN_ROUND, MEMORY_S, STATE, WARM_UP_MORE, ControlTable
from cadence.core.contract.control_messages import ControlCall
from cadence.core.contract.engine_state import MOST_STEP_TIMES, EngineState
from cadence.core.contract.messages import AddRequest, FromEngine, ToEngine
from cadence.core.contract.request import FinishReason
from cadence.core.contract.update import RequestUpdate
from cadence.core.errors import EngineDeadError, InvalidRequestError
from cadence.core.failure import Failure, FailureCode
from cadence.core.shown import shown
from cadence.engine.core import EngineCore
from cadence.engine.fronts import Fronts
from cadence.engine.heartbeat import StepClock
from cadence.executor.worker.rounds import NO_ROUNDS, AnyRounds

logger = logging.getLogger("cadence.engine")

IDLE_POLL_S = 0.2  # also the silence before a piece of warm-up, which would keep a new request waiting


class CoreLoop:
    """Sleeps on the channels of its fronts while there is nothing to do."""

    def __init__(
        self,
        core: EngineCore,
        fronts: Fronts,
        clock: StepClock,
        rounds: AnyRounds = NO_ROUNDS,
        table: ControlTable = CONTROL,
    ) -> None:
        """rounds: of engines that compute together, this one among them. table: the verbs that fronts may call"""
        core.handle(STATE, self._state)
        self._core = core
        self._fronts = fronts
        self._clock = clock
        self._rounds = rounds
        self._table = table
        self._unanswered: list[tuple[int, ControlCall, Future[Any]]] = []  # with the number of the front that calls
        self._step_seconds: deque[float] = deque(maxlen=MOST_STEP_TIMES)
        self._running = True
        self._warming = True  # the device may have more to prepare

    def run(self) -> None:
        while self._running:
            self._clock.busy_since = 0.0
            messages = self._fronts.receive(0.0 if self._has_work() else IDLE_POLL_S)
            self._rounds.clear_bell()
            self._clock.busy_since = time.monotonic()
            quiet = not messages
            while messages:
                for front, commands in messages:
                    self._apply(front, commands)
                messages = self._fronts.receive(0.0) if self._running else []
            if self._running and self._has_work():
                self._take_part()
                self._send_answers()
                continue
            self._core.check()
            if quiet and self._warming and not self._core.is_held:
                self._warming = self._core.call(WARM_UP_MORE, None).result()

    def _has_work(self) -> bool:
        return self._core.has_unfinished() or self._rounds.is_called

    def _take_part(self) -> None:
        """A step; where it computes nothing while other engines wait for this one, a step of the dummy row."""
        rounds_before = self._rounds.done
        if self._core.has_unfinished():
            self._step()
        if self._rounds.is_called and self._rounds.done == rounds_before:
            self._core.call(JOIN_ROUND, None).result()

    def _apply(self, front: int, commands: ToEngine) -> None:
        refused = [update for request in commands.add for update in self._add(front, request)]
        if refused:
            self._fronts.send(front, FromEngine(updates=refused))
        if commands.abort:
            self._core.abort([self._fronts.core_id(front, name) for name in commands.abort], commands.abort_reason)
        if commands.call is not None:
            self._unanswered.append((front, commands.call, self._carry_out(commands.call)))
            self._send_answers()
        self._running = self._running and not commands.stop

    def _add(self, front: int, added: AddRequest) -> list[RequestUpdate]:
        """A request that cannot be decoded or scheduled fails alone. -> its end, if it failed"""
        try:
            self._core.add(self._fronts.taken(front, decode_request(added.payload)))
        except EngineDeadError:
            raise
        except InvalidRequestError as error:
            why = str(error)
        except Exception:
            logger.exception("a request could not be read")
            why = "the engine could not read this request"
        else:
            return []
        return [RequestUpdate.end(added.request_id, FinishReason.ERROR, Failure(FailureCode.NOT_ACCEPTED, why))]

    def _carry_out(self, call: ControlCall) -> Future[Any]:
        """What cannot be read fails alone."""
        try:
            verb = self._table[call.verb]
            payload = payload_of(verb, call)
        except (KeyError, msgspec.MsgspecError):
            unread: Future[Any] = Future()
            unread.set_exception(InvalidRequestError(f"the engine could not read the call {shown(call.verb)}"))
            return unread
        if verb.deadline_s >= MEMORY_S:  # it may take longer than any step, and its front waits no longer than that
            self._clock.busy_since = 0.0
        answer = self._core.call(verb, payload)
        self._clock.busy_since = time.monotonic()
        return answer

    def _send_answers(self) -> None:
        """Of calls that were carried out by now."""
        for front, call, answer in self._unanswered:
            if answer.done():
                found = answer.exception() or self._fronts.shown(front, answer.result())
                self._fronts.send(front, FromEngine(answer=answer_to(call, found)))
        self._unanswered = [each for each in self._unanswered if not each[2].done()]

    def _step(self) -> None:
        start = time.perf_counter()
        updates, tokens = self._core.step(), self._core.take_tokens()
        self._step_seconds.append(time.perf_counter() - start)
        self._clock.num_steps += 1
        if updates or tokens:
            self._fronts.send_updates(updates, tokens)

    def _state(self, with_blocks: bool) -> EngineState:
        snapshot = self._core.snapshot(with_blocks)
        return replace(snapshot, num_steps=self._clock.num_steps, step_seconds=list(self._step_seconds))

"""The engine process's loop: commands in, a step, updates out."""

from __future__ import annotations

import logging
import time
from collections import deque
from dataclasses import replace

from cadence.core.adapter import AdapterOrder
from cadence.core.codec import decode_request
from cadence.core.engine_state import MOST_STEP_TIMES, EngineState
from cadence.core.errors import EngineDeadError, InvalidRequestError
from cadence.core.failure import Failure, FailureCode
from cadence.core.messages import AddRequest, FromEngine, ToEngine
from cadence.core.request import FinishReason
from cadence.core.update import RequestUpdate
from cadence.engine.core import EngineCore
from cadence.engine.fronts import Fronts
from cadence.engine.heartbeat import StepClock
from cadence.executor.control import join_round, warm_up_more
from cadence.executor.rounds import NO_ROUNDS, AnyRounds

logger = logging.getLogger("cadence.engine")

IDLE_POLL_S = 0.2  # also the silence before a piece of warm-up, which would keep a new request waiting


class CoreLoop:
    """Sleeps on the channels of its fronts while there is nothing to do."""

    def __init__(self, core: EngineCore, fronts: Fronts, clock: StepClock, rounds: AnyRounds = NO_ROUNDS) -> None:
        """rounds: of engines that compute together, this one among them"""
        self._core = core
        self._fronts = fronts
        self._clock = clock
        self._rounds = rounds
        self._step_seconds: deque[float] = deque(maxlen=MOST_STEP_TIMES)
        self._running = True
        self._warming = True  # the device may have more to prepare

    def run(self) -> None:
        while self._running:
            self._clock.busy_since = 0.0
            messages = self._fronts.receive(0.0 if self._has_work() else IDLE_POLL_S)
            self._rounds.heard()
            self._clock.busy_since = time.monotonic()
            quiet = not messages
            while messages:
                for front, commands in messages:
                    self._apply(front, commands)
                messages = self._fronts.receive(0.0) if self._running else []
            if self._running and self._has_work():
                self._take_part()
                continue
            self._core.check()
            if quiet and self._warming:
                self._warming = warm_up_more(self._core.call)

    def _has_work(self) -> bool:
        return self._core.has_unfinished() or self._rounds.is_called

    def _take_part(self) -> None:
        """A step, and where it computes nothing while others wait for this engine, one of the dummy row."""
        rounds_before = self._rounds.done
        if self._core.has_unfinished():
            self._step()
        if self._rounds.is_called and self._rounds.done == rounds_before:
            join_round(self._core.call)

    def _apply(self, front: int, commands: ToEngine) -> None:
        refused = [update for request in commands.add for update in self._add(front, request)]
        if refused:
            self._fronts.send(front, FromEngine(updates=refused))
        if commands.abort:
            self._core.abort([self._fronts.core_id(front, name) for name in commands.abort], commands.abort_reason)
        if commands.order is not None:
            self._order(front, commands.order, commands.call_id)
        elif commands.call:
            self._answer(front, commands.call, commands.call_id)
        self._running = self._running and not commands.stop

    def _add(self, front: int, added: AddRequest) -> list[RequestUpdate]:
        """What cannot be decoded or scheduled fails alone. -> its end, if it came to that"""
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

    def _answer(self, front: int, call: str, call_id: int) -> None:
        if call in ("state", "stats"):
            self._fronts.send(front, FromEngine(call_id=call_id, state=self._state(with_blocks=call == "state")))
        elif call in ("reset_prefix_cache", "reset_running_requests"):
            done = self._core.reset_prefix_cache(call == "reset_running_requests")
            self._fronts.send(front, FromEngine(call_id=call_id, done=done))
        elif call in ("pause", "resume"):
            self._core.pause(call == "pause")
            self._fronts.send(front, FromEngine(call_id=call_id, done=True))

    def _order(self, front: int, order: AdapterOrder, call_id: int) -> None:
        self._core.order(order, lambda answer: self._fronts.send(front, FromEngine(call_id=call_id, answer=answer)))

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

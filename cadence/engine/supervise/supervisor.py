"""Starts the engine process, reads its messages, and restarts it when it dies. `supervision.py` decides what to do
when; this file does the I/O."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import Any

from cadence.core.contract.codec import answer_of, call_of, encode_request
from cadence.core.contract.control import STATE, A, P, Verb
from cadence.core.contract.control_messages import ControlAnswer
from cadence.core.contract.engine_state import EngineState
from cadence.core.contract.messages import BYSTANDER, LACKS_RANKS, AddRequest, EngineInfo, FromEngine, ToEngine
from cadence.core.contract.request import EngineRequest, FinishReason
from cadence.core.contract.update import AnyUpdate, RequestUpdate
from cadence.core.errors import (
    CadenceError,
    EngineDeadError,
    EngineGivenUpError,
    InvalidRequestError,
    RanksMissingError,
)
from cadence.core.failure import Failure, FailureCode
from cadence.engine.supervise.async_client import EXIT_S, EngineStarter, ProcessStarter, RunningEngine
from cadence.engine.supervise.control_journal import ControlJournal, KeptCall
from cadence.engine.supervise.descriptors import DescriptorReserve
from cadence.engine.supervise.engine_client import EngineCounts
from cadence.engine.supervise.journal import JournalEntry
from cadence.engine.supervise.lifecycle import EngineStatus
from cadence.engine.supervise.limits import SupervisorLimits
from cadence.engine.supervise.supervision import Decision, Supervision
from cadence.engine.supervise.watchdog import Watchdog
from cadence.process.child import KILL_S, module_command

logger = logging.getLogger("cadence.engine")

ENGINE_COMMAND = module_command("cadence.engine.core_process")
SentCall = tuple[int, asyncio.Future[ControlAnswer]]  # (its id, what it will be answered with)
MAX_REQUESTS_PER_MESSAGE = 64  # between two such messages other tasks run on the event loop


class Supervisor:
    """Made inside a running event loop. `start` it, then read `updates`."""

    def __init__(
        self,
        options: dict[str, Any],
        command: Sequence[str] = ENGINE_COMMAND,
        limits: SupervisorLimits | None = None,
        starter: EngineStarter | None = None,
    ) -> None:
        self._options = options  # EngineArgs, as JSON knows it; and the CPUs it keeps to, where these are told
        self._command = command
        self._limits = limits or SupervisorLimits()
        self._logic = Supervision(self._limits)
        self._starter = starter or ProcessStarter()
        self._engine: RunningEngine | None = None  # None while there is none
        self._reserve = DescriptorReserve()
        self._calls: dict[int, asyncio.Future[ControlAnswer]] = {}  # by id
        self._num_calls = 0
        self._control = ControlJournal()
        self._replaying: asyncio.Future[None] = _done_future()
        self._num_steps = 0  # by the last heartbeat
        self._updates: asyncio.Queue[Sequence[AnyUpdate]] = asyncio.Queue()
        self._stop_asked = asyncio.Event()
        self._info: asyncio.Future[EngineInfo] = asyncio.get_running_loop().create_future()
        self._task: asyncio.Future[None] = _done_future()
        self._death: EngineDeadError | None = None  # why it was given up
        self.lacks_ranks = ""  # why the last engine did not become ready, where that was for want of ranks
        self.last_progress = time.monotonic()  # when a step last ended, or there was nothing to do
        self.on_change: Callable[[], None] = lambda: None  # hears that the engine is ready, or is no longer

    @property
    def status(self) -> EngineStatus:
        return self._logic.status

    @property
    def is_ready(self) -> bool:
        return self.status is EngineStatus.READY

    @property
    def pid(self) -> int:
        return self._engine.pid if self._engine is not None else 0

    @property
    def engine(self) -> RunningEngine | None:
        return self._engine

    @property
    def pids(self) -> list[int]:
        return [self.pid]

    @property
    def num_open(self) -> int:
        """Requests."""
        return len(self._logic.journal)

    def counts(self) -> list[EngineCounts]:
        journal = self._logic.journal
        return [EngineCounts(self._logic.num_restarts, journal.num_quarantined, journal.num_failed)]

    def start(self) -> None:
        self._task = asyncio.ensure_future(self._run())

    async def wait_ready(self) -> EngineInfo:
        """Of the first engine. Raises what it died of."""
        return await asyncio.shield(self._info)

    def submit(self, entry: JournalEntry) -> None:
        if not len(self._logic.journal):
            self.last_progress = time.monotonic()  # it was idle: that was no lack of progress
        self._logic.journal.add(entry)
        self._hand_over()

    def drop(self, request_ids: Iterable[str]) -> None:
        """The front has ended these itself: whatever the engine still says of them is not passed on."""
        ids = [request_id for request_id in request_ids if self._logic.journal.drop(request_id)]
        if ids:
            self._send(ToEngine(abort=ids))
        self._hand_over()

    def release(self, everything: bool) -> list[JournalEntry]:
        """Requests for another supervisor to go on with, as `Journal.release` has them."""
        return self._logic.journal.release(everything)

    async def updates(self) -> AsyncIterator[Sequence[AnyUpdate]]:
        """Everything all engines report, one after the other. Ends when stopped; raises when the engine is given up."""
        while not (self._task.done() and self._updates.empty()):
            if batch := await self._updates.get():
                yield batch
        if self._death is not None:
            raise self._death

    async def stop(self) -> None:
        """Asks the engine to exit, and kills it after the grace period."""
        was_ready = self.is_ready
        self._logic.stop()
        self._stop_asked.set()
        if self._engine is not None and was_ready:
            self._engine.send(ToEngine(stop=True))
        elif self._engine is not None:
            self._engine.kill()  # while it starts it reads no messages, and holds no requests
        self._starter.cancel()
        await asyncio.wait({self._task}, timeout=self._limits.stop_s + EXIT_S + KILL_S)
        self._reserve.close()

    async def states(self, with_blocks: bool) -> list[EngineState]:
        return [await self.call(STATE, with_blocks)]

    async def call(self, verb: Verb[P, A], payload: P) -> A:
        answer = answer_of(verb, await self._answer(verb, self._send_call(verb, payload)))
        self.keep(verb, payload)
        return answer

    def keep(self, verb: Verb[P, Any], payload: P) -> None:
        """The next engine carries it out, if the verb is one that is replayed."""
        self._control.note(verb, payload)

    def _begin_replay(self) -> None:
        """To an engine that has just been started, and has none of its requests yet."""
        kept = self._control.kept()
        sent = {each.name: self._send_call(each.verb, each.payload) for each in kept if each.verb.is_first}
        self._replaying = asyncio.ensure_future(self._replay(kept, sent))

    async def _replay(self, calls: list[KeptCall], sent: dict[str, SentCall]) -> None:
        """One after another: each may need those before it. sent: calls that were sent already, by name"""
        for kept in calls:
            try:
                call = sent.get(kept.name) or self._send_call(kept.verb, kept.payload)
                answer_of(kept.verb, await self._answer(kept.verb, call))
            except CadenceError as error:
                logger.warning("the restarted engine lacks %s: %s", kept.name, error)

    async def _run(self) -> None:
        """Whatever happens here, `updates` ends: a supervisor that fails gives up, and says so."""
        try:
            while not self._logic.is_over and not self._stop_asked.is_set():
                await self._run_process()
        except EngineGivenUpError as error:
            self._give_up(str(error))
        except Exception:
            logger.exception("the engine's supervisor failed")
            self._give_up("the engine's supervisor failed; the server's log says how")
        finally:
            if self._stop_asked.is_set():
                self._logic.stopped()
            else:
                self._logic.give_up()
            if not self._info.done():
                self._info.set_exception(self._death or EngineDeadError("the engine was stopped"))
                self._info.exception()  # marks it as retrieved: there may be no waiter
            self._updates.put_nowait([])

    async def _run_process(self) -> None:
        """One process, from start to exit, and the back-off after it."""
        self._logic.start()
        try:
            engine = await self._starter.start(self._command, self._start_options(), self._reserve)
        except RanksMissingError as error:
            return await self._apply(self._logic.ranks_missing(str(error)), str(error))
        except OSError as error:
            why = f"no engine process could be made: {error.strerror or error}"
            return await self._apply(self._logic.spawn_failed(), why)
        self._engine, grace_s, decision = engine, 0.0, None
        try:
            why, grace_s = await self._monitor(engine)
            if not self._stop_asked.is_set():
                # before its exit: nothing is sent to it any more
                decision = self._died(why)
                self.on_change()
        finally:
            self._engine = None
            self._fail_calls(EngineDeadError("the engine died"))
            end = await engine.end(grace_s)
        if decision is not None:
            await self._apply(decision, why or end)

    def _start_options(self) -> dict[str, Any]:
        """Ranks of other machines have less time to join an engine that was started again: requests wait for it."""
        if not self._info.done() or self._options.get("nnodes", 1) == 1:
            return self._options
        return {**self._options, "join_s": self._limits.rejoin_s}

    def _died(self, why: str) -> Decision:
        self.lacks_ranks = why if why.startswith(LACKS_RANKS) and self._info.done() else ""
        if self.lacks_ranks:
            return self._logic.ranks_missing(why)
        return self._logic.died(time.monotonic(), blameless=why == BYSTANDER)

    async def _monitor(self, engine: RunningEngine) -> tuple[str, float]:
        """Reads messages and checks heartbeats until the process is gone or must be killed. -> (cause of death, if
        known; seconds it has to exit)"""
        watchdog = Watchdog(self._limits)
        listening = asyncio.ensure_future(self._listen(engine, watchdog))
        watching = asyncio.ensure_future(self._watch(watchdog))
        try:
            await asyncio.wait({listening, watching}, return_when=asyncio.FIRST_COMPLETED)
            return (watching.result(), 0.0) if watching.done() else (listening.result(), EXIT_S)
        finally:
            for task in (listening, watching):
                task.cancel()
            await asyncio.gather(listening, watching, return_exceptions=True)

    async def _listen(self, engine: RunningEngine, watchdog: Watchdog) -> str:
        """-> the cause of death that the engine reports; "" = none"""
        async for message in engine.messages():
            watchdog.on_message(message.heartbeat)
            if message.fatal:
                return message.fatal
            if message.ready is not None:
                watchdog.ready()
            self._take(message)
        return ""

    async def _watch(self, watchdog: Watchdog) -> str:
        """-> why the process must be killed"""
        last, stopping_s = time.monotonic(), 0.0
        while True:
            await asyncio.sleep(self._limits.tick_s)
            now = time.monotonic()
            if why := watchdog.tick(now - last):
                return why
            stopping_s += watchdog.counted(now - last) if self._stop_asked.is_set() else 0.0
            if stopping_s > self._limits.stop_s:
                return "it did not stop when asked to"
            last = now
            self._reserve.fill()
            self._hand_over()

    def _take(self, message: FromEngine) -> None:
        now = time.monotonic()
        if message.ready is not None and not self._stop_asked.is_set():
            self._started(now)
            self._begin_replay()
            self.last_progress = now
            if not self._info.done():
                self._info.set_result(message.ready)
            self.on_change()
        if message.answer is not None:
            future = self._calls.pop(message.answer.call_id, None)
            if future is not None and not future.done():
                future.set_result(message.answer)
        if message.heartbeat is not None and message.heartbeat.num_steps != self._num_steps:
            self._num_steps, self.last_progress = message.heartbeat.num_steps, now
        if message.updates or message.tokens:
            self.last_progress = now
            self._updates.put_nowait(self._news(message))
        self._hand_over()

    def _news(self, message: FromEngine) -> list[AnyUpdate]:
        tokens = self._logic.take_tokens(message.tokens) if message.tokens else []
        return [*tokens, *self._logic.take(message.updates)]

    def _started(self, now: float) -> None:
        assert self._engine is not None
        self.lacks_ranks = ""
        self._logic.ready(now, self._engine.is_turn)
        self._logic.num_restarts = max(self._logic.num_restarts, self._engine.num_restarts)

    def _hand_over(self) -> None:
        """Sends the engine the requests that are due."""
        due = self._logic.due(time.monotonic(), MAX_REQUESTS_PER_MESSAGE)
        if not due:
            return
        added, failed = [], []
        for entry in due:
            try:
                added.append(AddRequest(entry.request_id, _payload(entry)))
            except InvalidRequestError as error:
                failure = Failure(FailureCode.NOT_ACCEPTED, str(error))
                failed.append(RequestUpdate.end(entry.request_id, FinishReason.ERROR, failure))
        self._send(ToEngine(add=added))
        if failed:
            self._updates.put_nowait(self._logic.take(failed))
        if len(due) == MAX_REQUESTS_PER_MESSAGE:
            asyncio.get_running_loop().call_soon(self._hand_over)

    async def _apply(self, decision: Decision, why: str) -> None:
        if decision.failed:
            self._updates.put_nowait(decision.failed)
        if decision.give_up:
            if not self._info.done():
                return self._give_up(why)  # no request came yet: the caller that started it gets the cause itself
            logger.error("%s: %s", decision.give_up, why)
            return self._give_up(f"{decision.give_up}; the server's log says why")
        level = logging.WARNING if self._limits.gives_up else logging.INFO  # else the engine's owner says so
        logger.log(level, "%s; starting another, %d requests go on", why, len(self._logic.journal))
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stop_asked.wait(), decision.backoff_s)

    def _give_up(self, why: str) -> None:
        self._logic.give_up()
        self._death = EngineDeadError(why)

    def _send(self, commands: ToEngine) -> None:
        """Without an engine nothing is lost: the journal holds what the next one must do."""
        if self.is_ready and self._engine is not None:
            self._engine.send(commands)

    def _fail_calls(self, error: EngineDeadError) -> None:
        for future in self._calls.values():
            if not future.done():
                future.set_exception(error)
        self._calls.clear()

    def _send_call(self, verb: Verb[P, Any], payload: P) -> SentCall:
        if not self.is_ready:
            raise EngineDeadError("the engine is starting")
        self._num_calls += 1
        number = self._num_calls
        future: asyncio.Future[ControlAnswer] = asyncio.get_running_loop().create_future()
        self._calls[number] = future
        self._send(ToEngine(call=call_of(verb, payload, number)))
        return number, future

    async def _answer(self, verb: Verb[Any, Any], call: SentCall) -> ControlAnswer:
        number, future = call
        try:
            return await asyncio.wait_for(future, verb.deadline_s)
        except TimeoutError:
            raise verb.unanswered("the engine") from None
        finally:
            self._calls.pop(number, None)


def _done_future() -> asyncio.Future[None]:
    """The task before the start."""
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    future.set_result(None)
    return future


def entry_of(request: EngineRequest, engine: int | None = None) -> JournalEntry:
    """Raises InvalidRequestError for what no message can carry, before the request is registered. engine: of several,
    the one that it is for; None = any"""
    payload = encode_request(request)
    return JournalEntry(request=request, payload=payload, token_ids=list(request.output_token_ids), engine=engine)


def _payload(entry: JournalEntry) -> bytes:
    return encode_request(entry.resumed()) if entry.token_ids else entry.payload

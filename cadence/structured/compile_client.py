"""The client of the compile process: a thread that starts it, feeds it and starts it again when it has died."""

from __future__ import annotations

import contextlib
import logging
import selectors
import socket
import threading
from collections import deque
from collections.abc import Callable

from cadence.core.errors import CadenceError
from cadence.core.grammar import GrammarSpec
from cadence.process.child import Child, sandboxed
from cadence.process.framing import packed_frame, receive
from cadence.structured.compile_jobs import (
    Compile,
    CompileRefused,
    CompileResult,
    CompilerReady,
    LoadVocabulary,
    from_compiler,
)
from cadence.structured.limits import GrammarLimits
from cadence.structured.vocabulary import Vocabulary

logger = logging.getLogger(__name__)

START_S = 60.0
ATTEMPTS = 2  # a process killed from outside says nothing about the job, which is tried again

Receive = Callable[[int, CompileResult | CompileRefused | None], None]


class _CompilerDiedError(CadenceError):
    pass


class CompileClient:
    """`prepare` gives the vocabulary; `receive` takes an answer, or None for a job that had none. Both are called in
    the client's thread."""

    def __init__(self, prepare: Callable[[], Vocabulary], receive: Receive, limits: GrammarLimits) -> None:
        self._prepare = prepare
        self._deliver = receive
        self._limits = limits
        self._new: deque[Compile] = deque()
        self._bell, self._doorstep = socket.socketpair()  # a byte wakes the thread
        self._bell.setblocking(False)
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="grammars", daemon=True)
        self._in_flight: dict[int, tuple[Compile, int]] = {}  # number -> job, attempts so far
        self._child: Child | None = None

    @property
    def pid(self) -> int:
        """0 while there is none."""
        return 0 if self._child is None else self._child.pid

    def start(self) -> None:
        if not self._thread.is_alive() and not self._closed:
            self._thread.start()

    def send(self, number: int, spec: GrammarSpec, tenant: str) -> None:
        self._new.append(Compile(number, spec, tenant))
        self.start()
        self._ring()

    def close(self) -> None:
        self._closed = True
        self._ring()
        if self._thread.is_alive():
            self._thread.join(START_S)

    def _ring(self) -> None:
        with contextlib.suppress(BlockingIOError):  # it is awake already
            self._bell.send(b"\0")

    # In the thread

    def _run(self) -> None:
        try:
            while not self._closed:
                try:
                    self._serve(self._opened())
                except (OSError, _CompilerDiedError, CadenceError) as error:
                    logger.warning("the process that compiles grammars ended: %s", error)
                    self._end_process()
                    self._retry()
        finally:
            self._end_process()

    def _serve(self, wire: socket.socket) -> None:
        for job, _ in self._in_flight.values():
            wire.sendall(packed_frame(job))
        with selectors.DefaultSelector() as selector:
            selector.register(wire, selectors.EVENT_READ)
            selector.register(self._doorstep, selectors.EVENT_READ)
            while not self._closed:
                ready = {key.fileobj for key, _ in selector.select()}
                if self._doorstep in ready:
                    self._doorstep.recv(4096)
                while self._new:
                    job = self._new.popleft()
                    self._in_flight[job.number] = (job, 1)
                    wire.sendall(packed_frame(job))
                if wire in ready:
                    self._take(wire)

    def _take(self, wire: socket.socket) -> None:
        data = receive(wire)
        if not data:
            raise _CompilerDiedError("its socket closed")
        answer = from_compiler.decode(data)
        assert not isinstance(answer, CompilerReady)
        del self._in_flight[answer.number]
        self._deliver(answer.number, answer)

    def _retry(self) -> None:
        """What was in the process that died is sent to the next one, once."""
        while self._new:
            job = self._new.popleft()
            self._in_flight[job.number] = (job, 0)
        for number, (job, attempts) in list(self._in_flight.items()):
            self._in_flight[number] = (job, attempts + 1)
            if attempts >= ATTEMPTS:
                del self._in_flight[number]
                self._deliver(number, None)
        if not self._in_flight:
            self._wait_for_work()

    def _wait_for_work(self) -> None:
        """No process is started for nothing."""
        while not self._new and not self._closed:
            self._doorstep.recv(4096)

    def _opened(self) -> socket.socket:
        vocabulary = self._prepare()
        self._child = Child.start(sandboxed("cadence.structured.compile_process", "the process that compiles grammars"))
        wire = self._child.wire
        wire.settimeout(START_S)
        wire.sendall(packed_frame(self._first(vocabulary)))
        if not receive(wire):
            raise _CompilerDiedError("it does not start")
        wire.settimeout(None)
        return wire

    def _first(self, vocabulary: Vocabulary) -> LoadVocabulary:
        limits = self._limits
        return LoadVocabulary(
            pieces=list(vocabulary.pieces),
            special=vocabulary.special,
            stop_ids=list(vocabulary.stop_ids),
            seconds=limits.seconds,
            clock_seconds=limits.clock_seconds,
            memory_bytes=limits.memory_bytes,
            compiled_bytes=limits.compiled_bytes,
            step_seconds=limits.step_seconds,
            median_seconds=limits.median_seconds,
            at_once=limits.at_once,
        )

    def _end_process(self) -> None:
        if self._child is not None:
            self._child.end()
            self._child = None

"""A process in which grammars are compiled: a schema or a pattern may be slow, run out of memory or crash.

`python -m cadence.structured.compile_process`, as `cadence.process` says. It has the packages and the vocabulary ready
and forks a child for each job: the child's death is the job's alone.
"""

from __future__ import annotations

import gc
import os
import selectors
import signal
import socket
import time
from dataclasses import dataclass, field, replace

from cadence.core.grammar import GrammarBackend, GrammarSpec
from cadence.process.framing import packed_frame, receive
from cadence.process.parent import end_with_parent, open_wire
from cadence.process.sandbox import confine, limit_memory
from cadence.structured.choose import choose_backend
from cadence.structured.compile_jobs import (
    Compile,
    CompileRefused,
    CompileResult,
    CompilerReady,
    FromCompiler,
    LoadVocabulary,
    ToCompiler,
    to_compiler,
)
from cadence.structured.compiler import Backends, CostlyGrammarError, RefusedGrammarError, try_out
from cadence.structured.llguidance_backend import greedy_encoder
from cadence.structured.tenant_queue import TenantQueue
from cadence.structured.vocabulary import Vocabulary

NICENESS = 5  # the engine goes first
SLOW_NICENESS = 15  # of a job that is no longer quick, beside others
QUICK_S = 1.0  # of CPU time
QUICK_AT_ONCE = 2
LOOK_S = 0.05  # between two looks at what children have used, at least
GRACE_S = 1.0  # a child's own alarm, after its parent's
_PIPE_BYTES = 2**18
_CPU_CLOCK = 2  # of a process, as Linux numbers clocks: its pid, inverted, and this


def main() -> None:
    wire = open_wire()
    first = to_compiler.decode(receive(wire))
    assert isinstance(first, LoadVocabulary)
    vocabulary = Vocabulary(tuple(first.pieces), first.special, tuple(first.stop_ids))
    backends = Backends(vocabulary, greedy_encoder(vocabulary), ("torch", "transformers"))
    backends.prepare()
    gc.freeze()
    confine(NICENESS)
    wire.sendall(packed_frame(CompilerReady()))
    CompileLoop(wire, backends, first).run()


@dataclass(slots=True)
class _CompileChild:
    """One job and the process that does it."""

    job: Compile
    pid: int
    pipe: int
    started: float
    answer: bytearray = field(default_factory=bytearray)
    slow: bool = False
    late: bool = False  # killed for the CPU time it took
    starved: bool = False  # killed for having had too little of it by the clock

    def cpu_seconds(self) -> float:
        """Also of one that has ended and was not waited for."""
        return time.clock_gettime(~self.pid << 3 | _CPU_CLOCK)


class CompileLoop:
    def __init__(self, wire: socket.socket, backends: Backends, limits: LoadVocabulary) -> None:
        self._wire = wire
        self._backends = backends
        self._limits = limits
        self._waiting = TenantQueue(limits.at_once)
        self._children: list[_CompileChild] = []
        self._selector = selectors.DefaultSelector()
        self._selector.register(wire, selectors.EVENT_READ)

    def run(self) -> None:
        while True:
            for key, _ in self._selector.select(self._pause()):
                if key.data is not None:
                    self._read(key.data)
                elif not self._receive():
                    return
            self._watch()
            self._start_waiting()

    def _start_waiting(self) -> None:
        while self._waiting and self._has_room():
            job = self._waiting.take([child.job for child in self._children])
            if job is None:
                return
            self._start(job)

    def _pause(self) -> float | None:
        """Seconds until a child is slow, late or starved, at the soonest: it may have a core of its own."""
        now, limits = time.monotonic(), self._limits
        soonest = [
            min(
                (limits.seconds if child.slow else min(QUICK_S, limits.seconds)) - child.cpu_seconds(),
                child.started + limits.clock_seconds - now,
            )
            for child in self._children
        ]
        return max(LOOK_S, min(soonest)) if soonest else None

    def _has_room(self) -> bool:
        quick = sum(not child.slow for child in self._children)
        return quick < QUICK_AT_ONCE and len(self._children) < self._limits.at_once

    def _receive(self) -> bool:
        """False where the other side has closed."""
        data = receive(self._wire)
        if data:
            job: ToCompiler = to_compiler.decode(data)
            assert isinstance(job, Compile)
            self._waiting.add(job)
        return bool(data)

    def _watch(self) -> None:
        now, limits = time.monotonic(), self._limits
        for child in self._children:
            if child.late or child.starved:
                continue
            used = child.cpu_seconds()
            child.late = used >= limits.seconds
            child.starved = not child.late and now - child.started >= limits.clock_seconds
            if child.late or child.starved:
                os.kill(child.pid, signal.SIGKILL)
            elif used >= QUICK_S and not child.slow:
                child.slow = True
                os.setpriority(os.PRIO_PROCESS, child.pid, SLOW_NICENESS)

    def _start(self, job: Compile) -> None:
        ours, theirs = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                os.close(ours)
                self._wire.close()
                self._work(job, theirs)
            finally:
                os._exit(1)
        os.close(theirs)
        child = _CompileChild(job, pid, ours, time.monotonic())
        self._children.append(child)
        self._selector.register(ours, selectors.EVENT_READ, child)

    def _work(self, job: Compile, pipe: int) -> None:
        """In the child."""
        end_with_parent()
        signal.setitimer(signal.ITIMER_REAL, self._limits.clock_seconds + GRACE_S)  # SIGALRM ends it without its parent
        limit_memory(self._limits.memory_bytes)
        try:
            answer: FromCompiler = self._compiled(job)
        except RefusedGrammarError as error:
            answer = CompileRefused(job.number, str(error))
        except MemoryError:
            answer = CompileRefused(job.number, self._too_large())
        rest = memoryview(packed_frame(answer))
        while rest:
            rest = rest[os.write(pipe, rest) :]
        os._exit(0)

    def _compiled(self, job: Compile) -> CompileResult:
        """By the backend that suits it; by llguidance where that is left open and xgrammar would take too much."""
        try:
            return self._tried(job.number, job.spec)
        except CostlyGrammarError as costly:
            if job.spec.backend is not GrammarBackend.AUTO or choose_backend(job.spec) is GrammarBackend.LLGUIDANCE:
                raise
            try:
                return self._tried(job.number, replace(job.spec, backend=GrammarBackend.LLGUIDANCE))
            except RefusedGrammarError:
                raise costly from None

    def _tried(self, number: int, spec: GrammarSpec) -> CompileResult:
        limits = self._limits
        try:
            backend, data = self._backends.compile(spec)
            if len(data) > limits.compiled_bytes:
                most = limits.compiled_bytes // 2**20
                raise CostlyGrammarError(f"is too large: compiled, it has more than {most} MiB")
            try_out(self._backends.read(spec, backend, data), limits.step_seconds, limits.median_seconds)
        except (MemoryError, RuntimeError) as error:
            if not isinstance(error, MemoryError) and "bad_alloc" not in str(error):
                raise
            raise CostlyGrammarError(self._too_large()) from None
        return CompileResult(number, backend, data)

    def _read(self, child: _CompileChild) -> None:
        chunk = os.read(child.pipe, _PIPE_BYTES)
        if chunk:
            child.answer += chunk
            return
        self._selector.unregister(child.pipe)
        os.close(child.pipe)
        self._children.remove(child)
        code = os.waitstatus_to_exitcode(os.waitpid(child.pid, 0)[1])
        if code != 0:
            child.answer = bytearray(packed_frame(self._refused(child, code)))
        self._wire.sendall(child.answer)

    def _refused(self, child: _CompileChild, code: int) -> CompileRefused:
        if child.starved or code == -signal.SIGALRM:
            return CompileRefused(child.job.number, "", again=True)
        return CompileRefused(child.job.number, self._cause(child, code))

    def _cause(self, child: _CompileChild, code: int) -> str:
        if child.late:
            return f"takes more than {self._limits.seconds:.3g} s to compile"
        if code == -signal.SIGSEGV:  # the end of the stack, or of the memory
            return f"is nested too deeply, or {self._too_large()}"
        return self._too_large() if code < 0 else "cannot be compiled: the process that did it ended"

    def _too_large(self) -> str:
        return f"needs more than {self._limits.memory_bytes // 2**20} MiB of memory to compile"


if __name__ == "__main__":
    main()

"""The client of the text process: it starts on first use, runs one job at a time, and is killed at a job's limits."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import subprocess
import sys

from cadence.config import env
from cadence.core.errors import BusyError, CadenceError, EngineDeadError
from cadence.text.text_jobs import (
    LENGTH_BYTES,
    Answer,
    Failed,
    FromProcess,
    Job,
    LoadTokenizer,
    Ready,
    frame,
    from_process,
)

MAX_WAITING = 32  # jobs, with the one that runs
START_S = 60.0
PATIENCE_S = 90.0  # of a job for its turn; from then on only its own limits count
ABANDONED_S = 1.0  # a job without a waiter may run this long, as a new process takes about as long to start
EXIT_S = 5.0  # between the end of the wire and that of the process
_BUFFER = 2**20
_OUT_OF_MEMORY = (-signal.SIGABRT, -signal.SIGSEGV)  # how native code ends when memory runs out


class JobError(CadenceError):
    """A job was not done. The message goes behind the name of what was too much: "took more than 10 s"."""


class _DiedError(CadenceError):
    """The process ended in the middle of a job: it crashed or was killed."""

    def __init__(self, code: int) -> None:
        super().__init__(f"ended with code {code}")
        self.code = code


class _Child:
    """One process and the socket to it."""

    def __init__(self, process: subprocess.Popen[bytes], reader: asyncio.StreamReader, writer: asyncio.StreamWriter):
        self._process = process
        self._reader = reader
        self._writer = writer

    @classmethod
    async def start(cls, load: LoadTokenizer) -> _Child:
        ours, theirs = socket.socketpair()
        with theirs:
            process = await asyncio.to_thread(
                subprocess.Popen,
                [sys.executable, "-m", "cadence.text.text_process", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                env=env.bare_environment(),
                start_new_session=True,
            )
        ours.setblocking(False)
        reader, writer = await asyncio.open_connection(sock=ours, limit=_BUFFER)
        child = cls(process, reader, writer)
        try:
            async with asyncio.timeout(START_S):
                await child.ask(load)
        except TimeoutError:
            await child.kill()
            raise BusyError("long texts and templates cannot be read at the moment; try again a little later") from None
        except _DiedError as error:
            await child.kill()
            raise RuntimeError(f"the text process does not start: {error}") from None
        except BaseException:
            await child.kill()
            raise
        return child

    @property
    def pid(self) -> int:
        return self._process.pid

    async def ask(self, message: Job | LoadTokenizer) -> FromProcess:
        try:
            self._writer.write(frame(message))
            await self._writer.drain()
            length = await self._reader.readexactly(LENGTH_BYTES)
            answer: FromProcess = from_process.decode(await self._reader.readexactly(int.from_bytes(length, "little")))
            return answer
        except (OSError, EOFError):
            raise _DiedError(await self._exit_code()) from None

    async def kill(self) -> None:
        self._writer.close()
        self._process.kill()
        await self._exit_code()

    async def _exit_code(self) -> int:
        for _ in range(int(EXIT_S / 0.01)):
            if (code := self._process.poll()) is not None:
                return code
            await asyncio.sleep(0.01)
        self._process.kill()
        return await asyncio.to_thread(self._process.wait)


class TextProcess:
    def __init__(self, load: LoadTokenizer) -> None:
        self._load = load
        self._child: _Child | None = None
        self._turn = asyncio.Lock()  # first come, first served
        self._tasks: set[asyncio.Task[Answer]] = set()
        self._running: tuple[asyncio.Task[Answer], asyncio.Timeout] | None = None

    @property
    def pid(self) -> int:
        """0 while there is none."""
        return self._child.pid if self._child is not None else 0

    @property
    def is_busy(self) -> bool:
        """A new job would wait for its turn."""
        return bool(self._tasks)

    async def run(self, job: Job) -> Answer:
        """The answer, also where it says what is wrong with the job; JobError where the job went too far."""
        if len(self._tasks) >= MAX_WAITING:
            raise BusyError("too many long texts and templates wait to be read; try again a little later")
        task = asyncio.create_task(self._in_turn(job))
        self._tasks.add(task)
        task.add_done_callback(self._forget)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            current = asyncio.current_task()
            if current is not None and current.cancelling():
                self._abandon(task)
                raise
            raise EngineDeadError("the server is shutting down") from None  # it was `close`

    async def close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._end()

    def _forget(self, task: asyncio.Task[Answer]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # marks it as retrieved

    def _abandon(self, task: asyncio.Task[Answer]) -> None:
        """A job that runs gets a moment to end, one that waits leaves the queue."""
        if self._running is None or self._running[0] is not task:
            task.cancel()
            return
        clock = self._running[1]
        soon = asyncio.get_running_loop().time() + ABANDONED_S
        clock.reschedule(min(soon, clock.when() or soon))

    async def _in_turn(self, job: Job) -> Answer:
        try:
            async with asyncio.timeout(PATIENCE_S):
                await self._turn.acquire()
        except TimeoutError:
            raise BusyError("other long texts and templates take their time; try again a little later") from None
        try:
            return await self._answer(job)
        finally:
            self._turn.release()

    async def _answer(self, job: Job) -> Answer:
        try:
            answer = await self._twice(job)
        except BaseException:
            await self._end()
            raise
        if getattr(answer, "retire", False) or (isinstance(answer, Failed) and answer.out_of_memory):
            await self._end()
        if isinstance(answer, Failed) and answer.out_of_memory:
            raise JobError(self._too_large())
        return answer

    async def _twice(self, job: Job) -> Answer:
        """A process killed from outside says nothing about the job, which is retried."""
        for _ in range(2):
            try:
                return await self._exchange(job)
            except _DiedError as death:
                await self._end()
                if death.code in _OUT_OF_MEMORY:
                    raise JobError(self._too_large()) from None
                if death.code != -signal.SIGKILL:
                    break
        raise JobError("ended the process that read it")

    async def _exchange(self, job: Job) -> Answer:
        if self._child is None:
            self._child = await _Child.start(self._load)
        task = asyncio.current_task()
        assert task is not None
        try:
            async with asyncio.timeout(job.seconds) as clock:
                self._running = (task, clock)
                answer = await self._child.ask(job)
        except TimeoutError:
            raise JobError(f"took more than {job.seconds:.3g} s") from None
        finally:
            self._running = None
        assert not isinstance(answer, Ready)
        return answer

    def _too_large(self) -> str:
        return f"used more than {self._load.memory_bytes // 2**20} MiB of memory"

    async def _end(self) -> None:
        if self._child is not None:
            child, self._child = self._child, None
            with contextlib.suppress(ProcessLookupError):
                await child.kill()

"""The client of the text process: it starts on first use, runs one job at a time, and is killed at a job's limits."""

from __future__ import annotations

import asyncio
import signal

from cadence.core.errors import BusyError, CadenceError, EngineDeadError
from cadence.process.child import AsyncChild, sandboxed
from cadence.process.framing import packed_frame, read_frame
from cadence.text.service.text_jobs import Answer, Failed, FromProcess, Job, LoadTokenizer, Ready, from_process

MAX_WAITING = 32  # jobs, with the one that runs
START_S = 60.0
PATIENCE_S = 90.0  # of a job for its turn; from then on only its own limits count
ABANDONED_S = 1.0  # a job without a waiter may run this long, as a new process takes about as long to start
EXIT_S = 5.0  # between the end of the wire and that of the process
_BUFFER = 2**20
_OUT_OF_MEMORY = (-signal.SIGABRT, -signal.SIGSEGV)  # how native code ends when memory runs out


class JobError(CadenceError):
    """A job was not done. The message follows the name of what was too much: "took more than 10 s"."""


class _DiedError(CadenceError):
    """The process ended in the middle of a job: it crashed or was killed."""

    def __init__(self, status: int | None) -> None:
        super().__init__(f"ended with code {status}")
        self.status = status


class _TextChild:
    """One process and the wire to it."""

    def __init__(self, child: AsyncChild, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._child = child
        self._reader = reader
        self._writer = writer

    @classmethod
    async def start(cls, load: LoadTokenizer) -> _TextChild:
        process, wire = await AsyncChild.start(sandboxed("cadence.text.service.text_process", "the text process"))
        reader, writer = await asyncio.open_connection(sock=wire, limit=_BUFFER)
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
        return self._child.pid

    async def ask(self, message: Job | LoadTokenizer) -> FromProcess:
        try:
            self._writer.write(packed_frame(message))
            await self._writer.drain()
            answer: FromProcess = from_process.decode(await read_frame(self._reader))
            return answer
        except (OSError, EOFError):
            await self._child.end(EXIT_S)
            raise _DiedError(self._child.status) from None

    async def kill(self) -> None:
        self._writer.close()
        await self._child.end(0.0)


class TextProcess:
    def __init__(self, load: LoadTokenizer) -> None:
        self._load = load
        self._child: _TextChild | None = None
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
                if death.status in _OUT_OF_MEMORY:
                    raise JobError(self._too_large()) from None
                if death.status != -signal.SIGKILL:
                    break
        raise JobError("ended the process that read it")

    async def _exchange(self, job: Job) -> Answer:
        if self._child is None:
            self._child = await _TextChild.start(self._load)
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
            await child.kill()

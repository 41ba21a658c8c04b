"""Requests whose prompts grow while they are answered, as chains of ordinary requests of the same front.

While the engine writes, a chunk ends its request after the newest token, and a request with all tokens so far and the
chunk follows. The engine, its scheduler and its restart know nothing of it.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import replace
from typing import Any, Protocol

from cadence.config.engine_config import EngineConfig
from cadence.core.errors import InvalidRequestError
from cadence.core.outputs import RequestOutput
from cadence.core.sampling_params import SamplingParams
from cadence.engine.text.live_request import LiveChunk, LiveInput, LiveRequest, StreamingInput
from cadence.engine.text.prompts import pinned
from cadence.text.service.text_service import Encoding, TextService

MOST_WAITING = 64  # chunks that were taken from the caller's iterator and not yet looked at
OURS = ("stop", "length", "repetition")  # ends of an answer after which more input may come


class WritesText(Protocol):
    """A front, as far as live input asks it for requests."""

    @property
    def config(self) -> EngineConfig: ...

    @property
    def texts(self) -> TextService: ...

    @property
    def generate(self) -> Callable[..., AsyncGenerator[RequestOutput]]: ...

    def stream(self, request_id: str) -> object | None:
        """None = there is no such request in the engine."""
        ...

    async def abort(self, request_id: str) -> None: ...


class ChunkReader:
    """What has come from the caller and was not looked at: chunks, their end, and an abort."""

    def __init__(self, chunks: LiveInput) -> None:
        self.has_ended = False  # no chunk will come after those that wait
        self.is_aborted = False
        self._waiting: list[LiveChunk] = []
        self._error: BaseException | None = None
        self._changed, self._room = asyncio.Event(), asyncio.Event()
        self._room.set()
        self._reader = asyncio.ensure_future(self._read(chunks))

    @property
    def interrupts(self) -> bool:
        """Whether there is something for which what is being written ends."""
        return bool(self._waiting) or self.is_aborted or self._error is not None

    @property
    def is_over(self) -> bool:
        return self.has_ended and not self.interrupts

    async def wait(self) -> None:
        """Until something interrupts, or the end of the input is known."""
        while not (self.interrupts or self.has_ended):
            self._changed.clear()
            await self._changed.wait()

    async def wait_interrupt(self) -> None:
        while not self.interrupts:
            self._changed.clear()
            await self._changed.wait()

    def take(self) -> list[LiveChunk]:
        """Raises what the caller's iterator raised."""
        if self._error is not None:
            raise self._error
        taken, self._waiting = self._waiting, []
        self._room.set()
        return taken

    def abort(self) -> None:
        self.is_aborted = True
        self._changed.set()

    async def close(self) -> None:
        self._reader.cancel()
        await asyncio.gather(self._reader, return_exceptions=True)

    async def _read(self, chunks: LiveInput) -> None:
        try:
            async for chunk in chunks:
                self._waiting.append(chunk)
                self._changed.set()
                if len(self._waiting) >= MOST_WAITING:
                    self._room.clear()
                    await self._room.wait()
        except Exception as error:
            self._error = error
        self.has_ended = True
        self._changed.set()


async def chunks_of_loop(
    chunks: LiveInput, loop: asyncio.AbstractEventLoop, rank: int | None = None
) -> AsyncGenerator[LiveChunk]:
    """On the loop of a front: what an iterator gives that lives on `loop`. rank: of the engine; None = any"""
    iterator, end = aiter(chunks), object()

    async def next_one() -> Any:
        return await anext(iterator, end)

    while True:
        chunk = await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(next_one(), loop))
        if chunk is end:
            return
        if rank is not None:
            given = chunk if isinstance(chunk, StreamingInput) else StreamingInput(chunk)
            chunk = replace(given, prompt=pinned(given.prompt, rank))
        yield chunk


class LiveRequests:
    """Of one front, those that are open."""

    def __init__(self) -> None:
        self._open: dict[str, ChunkReader] = {}

    def abort(self, request_id: str) -> bool:
        """Whether there is one of this id."""
        inbox = self._open.get(request_id)
        if inbox is not None:
            inbox.abort()
        return inbox is not None

    async def outputs(
        self, llm: WritesText, chunks: LiveInput, params: SamplingParams, request_id: str, **options: Any
    ) -> AsyncGenerator[RequestOutput]:
        """options: the further parameters of `AsyncLLM.generate`, and of `LiveWriter`"""
        if request_id in self._open:
            raise InvalidRequestError(f"request_id {request_id!r} is already running", "request_id")
        if llm.config.model.encoder.exists:
            raise InvalidRequestError(
                "live input is for decoders: this model's encoder reads its prompt whole", "prompt"
            )
        request = LiveRequest(request_id, params)
        inbox = self._open[request_id] = ChunkReader(chunks)
        try:
            async with aclosing(LiveWriter(llm, inbox, request, **options).outputs()) as outputs:
                async for output in outputs:
                    yield output
        finally:
            del self._open[request_id]
            await inbox.close()


class LiveWriter:
    """Writes one live request."""

    def __init__(
        self, llm: WritesText, inbox: ChunkReader, request: LiveRequest, ends_with_answer: bool = False, **options: Any
    ) -> None:
        """ends_with_answer: it ends when an answer does and no chunk waits, though more may come"""
        self._llm = llm
        self._inbox = inbox
        self._request = request
        self._ends_with_answer = ends_with_answer
        self._options = options
        self._numbers = itertools.count()
        self._is_over = False

    async def outputs(self) -> AsyncGenerator[RequestOutput]:
        inbox, request = self._inbox, self._request
        while not self._is_over:
            await inbox.wait()
            await asyncio.sleep(0)  # what comes in the same turn comes together
            if inbox.is_aborted:
                yield request.last("abort")
                return
            for chunk in inbox.take():
                request.append(chunk)
            if request.has_open:
                async with aclosing(self._answer()) as answer:
                    async for output in answer:
                        yield output
            elif inbox.is_over:
                if not request.num_chunks:
                    raise InvalidRequestError("the input ended before its first chunk", "prompt")
                yield request.last()
                return

    async def _answer(self) -> AsyncGenerator[RequestOutput]:
        """One engine request."""
        request, name = self._request, f"{next(self._numbers)}-live-{self._request.request_id}"
        with request.naming_chunk():
            prompt = await request.prompt(self._encode)
            outputs = self._llm.generate(prompt, request.params, name, **self._options)
            async with aclosing(outputs):
                async for output in self._until_interrupted(outputs, name):
                    self._is_over = self._ends(output)
                    shown = request.shown(output, self._is_over)
                    if shown is not None:
                        yield shown
        request.close_answer()

    async def _until_interrupted(
        self, outputs: AsyncGenerator[RequestOutput], name: str
    ) -> AsyncGenerator[RequestOutput]:
        """With all tokens that have come here."""
        news: asyncio.Future[None] = asyncio.ensure_future(self._inbox.wait_interrupt())
        step: asyncio.Future[RequestOutput | None] | None = None
        waits = True  # nothing has interrupted it
        try:
            while True:
                step = asyncio.ensure_future(anext(outputs, None))
                awaited: set[asyncio.Future[Any]] = {step, news} if waits else {step}
                await asyncio.wait(awaited, return_when=asyncio.FIRST_COMPLETED)
                if waits and news.done() and not step.done():
                    waits = False
                    if self._llm.stream(name) is None:  # it was not sent to the engine yet
                        return
                    await self._llm.abort(name)
                output = await step
                if output is None:
                    return
                yield output
        finally:
            for task in (news, step):
                if task is not None and not task.done():
                    task.cancel()
                    await asyncio.gather(task, return_exceptions=True)

    def _ends(self, output: RequestOutput) -> bool:
        """Whether no engine request follows the one that this is of."""
        if not output.finished:
            return False
        if self._inbox.is_aborted:
            return True
        reason = output.outputs[0].finish_reason
        if self._inbox.interrupts:
            return reason == "error"
        return reason not in OURS or self._inbox.has_ended or self._ends_with_answer

    async def _encode(self, text: str, add_special_tokens: bool) -> list[int]:
        return (await self._llm.texts.encode(text, Encoding(add_special_tokens=add_special_tokens))).ids

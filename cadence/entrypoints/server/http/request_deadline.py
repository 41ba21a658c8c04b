"""A limit on how long a request may take, laid around the engine, so that no route has to know of it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable
from typing import TYPE_CHECKING, Any, TypeVar, cast

from cadence.core.outputs import RequestOutput
from cadence.core.sampling_params import BeamSearchParams, SamplingParams
from cadence.entrypoints.server.http.errors import ApiError

if TYPE_CHECKING:
    from cadence.entrypoints.async_llm import AsyncLLM

T = TypeVar("T")
LATE = "The request took longer than the server's limit"


class DeadlineLLM:
    """Is the engine in everything but what generates: those iterators end with an error when their time is over."""

    def __init__(self, llm: AsyncLLM, seconds: float) -> None:
        self._llm = llm
        self._seconds = seconds

    def __getattr__(self, name: str) -> Any:
        return getattr(self._llm, name)

    def generate(
        self, prompt: Any, params: SamplingParams, request_id: str, **options: Any
    ) -> AsyncGenerator[RequestOutput]:
        return self._in_time(self._llm.generate(prompt, params, request_id, **options))

    def beam_search(
        self, prompt: Any, params: BeamSearchParams, request_id: str, **options: Any
    ) -> AsyncGenerator[RequestOutput]:
        return self._in_time(self._llm.beam_search(prompt, params, request_id, **options))

    def _in_time(self, source: AsyncIterator[RequestOutput]) -> AsyncGenerator[RequestOutput]:
        outputs = cast(AsyncGenerator[RequestOutput], source)
        return ends_within(outputs, self._seconds, LATE)


async def ends_within(source: AsyncGenerator[T], seconds: float, late: str) -> AsyncGenerator[T]:
    """`source`, which ends with an error, whose message begins with `late`, when its time is over."""
    ends = time.monotonic() + seconds
    try:
        while True:
            async with asyncio.timeout(ends - time.monotonic()):
                item = await anext(source)
            yield item
    except StopAsyncIteration:
        return
    except TimeoutError:
        raise ApiError(408, f"{late} of {seconds:g} s.") from None
    finally:
        await source.aclose()


async def in_time(work: Awaitable[T], seconds: float) -> T:
    """What `work` gives; for a request of many parts, each of which the engine knows by itself. 0 = no limit"""
    try:
        async with asyncio.timeout(seconds or None):
            return await work
    except TimeoutError:
        raise ApiError(408, f"{LATE} of {seconds:g} s.") from None


def with_deadline(llm: AsyncLLM, seconds: float) -> AsyncLLM:
    """`seconds` 0 = no limit."""
    return cast("AsyncLLM", DeadlineLLM(llm, seconds)) if seconds else llm

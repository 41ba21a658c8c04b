"""From the media of requests to pixels, beside the event loop.

1. Files behind URLs are fetched by threads of their own, as they mostly wait: `FETCHES` at once, and of all requests no
   more than `MAX_FETCHED_BYTES`, for which a request waits before its first.
2. It waits for one of `THREADS` places, and its files are decoded, one after the other.
3. It keeps its place until the budget has room for its pixels: at most `MAX_HELD_BYTES` are held, or those of one
   request, and those of `THREADS` that wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import TypeVar

from cadence.core.errors import InvalidRequestError
from cadence.entrypoints.media.held_bytes import HeldBytes
from cadence.entrypoints.media.pending import PendingMedia
from cadence.media.fetch.read_url import waits_for_network
from cadence.media.fetch.reader import MediaData, MediaReader
from cadence.media.parts import MediaPart
from cadence.media.video import Sampling

THREADS = 2
FETCHES = 16
MAX_FETCHED_BYTES = 2**29
MAX_HELD_BYTES = 2**30
_SLACK_S = 1.0  # beyond the time of a fetch: names are looked up by calls that cannot be given up

T = TypeVar("T")


class MediaService:
    def __init__(self, reader: MediaReader, max_held_bytes: int = MAX_HELD_BYTES) -> None:
        self._reader = reader
        self._threads = ThreadPoolExecutor(THREADS, "media")
        self._places = asyncio.Semaphore(THREADS)
        self._fetchers = ThreadPoolExecutor(FETCHES, "fetch")
        self._fetches = asyncio.Semaphore(FETCHES)
        self._fetched = HeldBytes(MAX_FETCHED_BYTES)
        self._held = HeldBytes(max_held_bytes)

    @property
    def sampling(self) -> Sampling:
        """Of videos, where a request says nothing."""
        return self._reader.sampling

    @asynccontextmanager
    async def opened(self, pending: PendingMedia) -> AsyncGenerator[MediaData, None]:
        """The `multi_modal_data` of a prompt. The budget has it until the end."""
        if pending.is_empty:
            yield {}
            return
        data, size = await self._read(pending)
        try:
            yield data
        finally:
            data.clear()  # others may still have it
            self._held.give_back(size)

    def close(self) -> None:
        for threads in (self._threads, self._fetchers):
            threads.shutdown(wait=False, cancel_futures=True)

    async def _read(self, pending: PendingMedia) -> tuple[MediaData, int]:
        parts = pending.take()
        self._reader.check_counts(parts)
        async with self._fetched.share(self._most_fetched(parts)):
            fetched = await self._fetch(parts)
            async with self._places:
                data = await self._in_thread(self._decoded, parts, fetched, pending.sampling)
                parts, fetched = (), []
                pending.done()
                size = sum(3 * medium.num_pixels for media in data.values() for medium in media if medium is not None)
                await self._held.take(size)
        return data, size

    def _most_fetched(self, parts: Sequence[MediaPart]) -> int:
        limits = self._reader.limits
        return min(sum(limits.bytes_of(part.kind) for part in parts if waits_for_network(part)), limits.prompt_bytes)

    async def _fetch(self, parts: Sequence[MediaPart]) -> list[list[bytes] | None]:
        """Of each part; None of those that need no network."""
        waiting = [part for part in parts if waits_for_network(part)]
        fetched = iter(await asyncio.gather(*map(self._fetch_one, waiting)))
        return [next(fetched) if waits_for_network(part) else None for part in parts]

    async def _fetch_one(self, part: MediaPart) -> list[bytes]:
        seconds = self._reader.urls.access.seconds[part.kind]
        async with self._fetches:
            fetching = asyncio.get_running_loop().run_in_executor(self._fetchers, self._reader.fetch, part)
            try:
                async with asyncio.timeout(seconds + _SLACK_S):
                    return await fetching
            except TimeoutError:
                message = f"{part.where}: the URL took more than {seconds:g} seconds"
                raise InvalidRequestError(message, part.where) from None

    def _decoded(
        self, parts: Sequence[MediaPart], fetched: Sequence[list[bytes] | None], sampling: Sampling
    ) -> MediaData:
        files = [self._reader.fetch(part) if some is None else some for part, some in zip(parts, fetched, strict=True)]
        return self._reader.decode(parts, files, sampling)

    async def _in_thread(self, work: Callable[..., T], *given: object) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work, *given)

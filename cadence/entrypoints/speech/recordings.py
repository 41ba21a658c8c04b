"""Recordings are decoded beside the event loop, few at once, and what they take in memory is bounded.

A recording waits for one of `THREADS` places, is decoded, and keeps its place until the budget has room for its
samples: at most `MAX_HELD_BYTES` of samples are held, or those of one recording, and those of `THREADS` that wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from cadence.audio.decode import decode_audio
from cadence.audio.limits import DEFAULT_LIMITS, AudioLimits
from cadence.entrypoints.media.held_bytes import HeldBytes

FloatArray = npt.NDArray[np.float32]
T = TypeVar("T")

THREADS = 2
MAX_HELD_BYTES = 2**30  # four and a half hours of sound


class Recordings:
    def __init__(self, limits: AudioLimits = DEFAULT_LIMITS, max_held_bytes: int = MAX_HELD_BYTES) -> None:
        self._limits = limits
        self._threads = ThreadPoolExecutor(THREADS, "audio")
        self._places = asyncio.Semaphore(THREADS)
        self._held = HeldBytes(max_held_bytes)

    @asynccontextmanager
    async def opened(self, read: Callable[[], bytes]) -> AsyncGenerator[FloatArray, None]:
        """The samples [n] of a file, at the rate that models want. `read` gives its bytes, in a thread."""
        async with self._places:
            samples_np = await self.in_thread(lambda: decode_audio(read(), self._limits))
            size = samples_np.nbytes
            await self._held.take(size)
        try:
            yield samples_np
        finally:
            self._held.give_back(size)

    async def in_thread(self, work: Callable[[], T]) -> T:
        """Work on samples, in a thread."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

"""Several streams as one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Sequence
from contextlib import aclosing
from typing import Any, TypeVar

T = TypeVar("T")


async def merged(opening: Awaitable[Sequence[AsyncGenerator[T, None]]]) -> AsyncGenerator[tuple[int, T], None]:
    """Items as they come, each with the number of its source. The first error of any source ends all of them.

    `opening` gives the sources when the first item is asked for. A source runs at most one item ahead of the reader,
    so a slow reader still slows them down.
    """
    sources = await opening
    if len(sources) == 1:
        async with aclosing(sources[0]) as items:
            async for only in items:
                yield 0, only
        return
    queue: asyncio.Queue[tuple[int, T | None, Exception | None]] = asyncio.Queue(maxsize=len(sources))
    tasks = [asyncio.ensure_future(_pump(number, source, queue)) for number, source in enumerate(sources)]
    try:
        running = len(tasks)
        while running:
            number, item, error = await queue.get()
            if error is not None:
                raise error
            if item is None:
                running -= 1
            else:
                yield number, item
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _pump(number: int, source: AsyncGenerator[T, None], queue: asyncio.Queue[Any]) -> None:
    try:
        async with aclosing(source) as items:
            async for item in items:
                await queue.put((number, item, None))
        await queue.put((number, None, None))
    except Exception as error:
        await queue.put((number, None, error))

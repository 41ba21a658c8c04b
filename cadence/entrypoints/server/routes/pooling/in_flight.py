"""The parts of one request: so many at once, all of which end when one fails or the client leaves."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing
from typing import TypeVar

from cadence.entrypoints.server.http.merge import merged

T = TypeVar("T")

IN_FLIGHT = 256  # as many rows as an engine has by default


def width(count: int) -> int:
    """How many of so many parts an engine has at once."""
    return min(count, IN_FLIGHT)


async def all_parts(count: int, part: Callable[[int], Awaitable[T]]) -> list[T]:
    """What `part` gives for 0, 1, …, in this order. The first error ends all of them."""
    numbers, done = iter(range(count)), dict[int, T]()
    sources = [_results(numbers, part) for _ in range(width(count))]
    async with aclosing(merged(_opened(sources))) as items:
        async for _, (number, result) in items:
            done[number] = result
    return [done[number] for number in range(count)]


async def _results(numbers: Iterator[int], part: Callable[[int], Awaitable[T]]) -> AsyncGenerator[tuple[int, T], None]:
    """Takes a number when it has done the last."""
    for number in numbers:
        yield number, await part(number)


async def _opened(sources: Sequence[T]) -> Sequence[T]:
    return sources

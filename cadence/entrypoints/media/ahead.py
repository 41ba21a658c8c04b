"""Prompts with pictures are prepared by several threads, some ahead of the one that is taken."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import chain, islice

from cadence.engine.text.prompt_media import MediaList
from cadence.engine.text.prompts import ParsedPrompt, PromptType, parse_prompt

_MOST_THREADS = 8


def prepared_ahead(
    prompts: Iterable[PromptType], prepare: Callable[[ParsedPrompt], ParsedPrompt]
) -> Iterator[PromptType]:
    """In their order; what is wrong with one is raised when it is its turn."""
    parsed = map(parse_prompt, prompts)
    first = next(parsed, None)
    if first is None:
        return
    if not isinstance(first.source, MediaList):
        yield first
        yield from parsed
        return
    count = min(_MOST_THREADS, len(os.sched_getaffinity(0)))
    with ThreadPoolExecutor(count) as threads:
        waiting: deque[Future[ParsedPrompt]] = deque()
        everything = (threads.submit(prepare, each) for each in chain([first], parsed))
        try:
            waiting.extend(islice(everything, 2 * count))
            while waiting:
                yield waiting.popleft().result()
                waiting.extend(islice(everything, 1))
        finally:
            for each in waiting:
                each.cancel()

"""An engine that is killed at a certain moment of its requests."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from typing import Any

from cadence.entrypoints.async_llm import AsyncLLM

MOMENTS = ("in prompts", "while tokens come")


async def killed(
    llm: AsyncLLM,
    ask: Callable[[str], Awaitable[list[Any]]],
    late: int,
    moment: str,
    forget: Callable[[], Awaitable[Any]],
) -> list[Any]:
    """-> the answers of requests whose engine was killed while some had tokens and number `late`, whose prompt is long,
    had none ("in prompts"), or had some. ask: all of them, under names that begin so; forget: what they left cached"""

    def begun() -> tuple[bool, bool]:
        """Whether any has tokens, and whether the late one has none."""
        entries = {entry.request.request_id: entry for entry in llm._supervisor._logic.journal}
        waiting = [entry for name, entry in entries.items() if f"-{late}" in name]
        return any(entry.token_ids for entry in entries.values()), not any(entry.token_ids for entry in waiting)

    for number in range(50):  # on a busy machine all may have ended before this process is back
        answers = asyncio.ensure_future(ask(f"{moment} {number}"))
        while not answers.done():
            some, late_is_in_its_prompt = begun()
            if some and late_is_in_its_prompt == (moment == MOMENTS[0]):
                os.kill(llm.engine_pid, signal.SIGKILL)
                return await answers
            await asyncio.sleep(0)
        await forget()
    raise AssertionError("never seen")

"""How long a model may reason, and which tokens begin and end that: what a budget is counted by."""

from __future__ import annotations

from cadence.entrypoints.server.chat.reasoning_formats import ThinkFormat
from cadence.text.service.text_service import Encoding, TextService

ROOM_FOR_CALLS = 256  # tokens that reasoning leaves for calls that are demanded; half of all where there are fewer


def budget_before_calls(budget: int | None, max_tokens: int | None) -> int | None:
    """The budget of an answer that has to end with a call: reasoning does not take all of its tokens."""
    if max_tokens is None:
        return budget
    left = max_tokens - min(ROOM_FOR_CALLS, max_tokens // 2)
    return left if budget is None else min(budget, left)


async def thinking_ids(format: ThinkFormat, prompt: str, texts: TextService) -> list[list[int]] | None:
    """[what begins it, what ends it]; None for a format without thoughts. Nothing begins it where the output does: the
    prompt has the tag, or none is needed."""
    if not format.open or not format.close:
        return None
    how = Encoding(add_special_tokens=False)
    begin = [] if format.begun(prompt) else (await texts.encode(format.open[0], how)).ids
    return [begin, (await texts.encode(format.close[0], how)).ids]

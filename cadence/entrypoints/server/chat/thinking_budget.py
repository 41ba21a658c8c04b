"""Which tokens begin and end a model's reasoning: what a budget for it is counted by."""

from __future__ import annotations

from cadence.entrypoints.server.chat.reasoning_formats import ThinkFormat
from cadence.text.text_service import Encoding, TextService


async def thinking_ids(format: ThinkFormat, prompt: str, texts: TextService) -> list[list[int]] | None:
    """[what begins it, what ends it]; None for a format without thoughts. Nothing begins it where the output does: the
    prompt has the tag, or none is needed."""
    if not format.open or not format.close:
        return None
    how = Encoding(add_special_tokens=False)
    begin = [] if format.begun(prompt) else (await texts.encode(format.open[0], how)).ids
    return [begin, (await texts.encode(format.close[0], how)).ids]

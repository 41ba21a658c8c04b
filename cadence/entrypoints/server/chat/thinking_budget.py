"""Which tokens begin and end a model's reasoning: what a budget for it is counted by."""

from __future__ import annotations

from cadence.entrypoints.server.chat.reasoning_formats import ThinkFormat
from cadence.text.tokenizer import Tokenizer


def thinking_ids(format: ThinkFormat, prompt: str, tokenizer: Tokenizer) -> list[list[int]] | None:
    """[what begins it, what ends it]; None for a format without thoughts. Nothing begins it where the output does: the
    prompt has the tag, or none is needed."""
    if not format.open or not format.close:
        return None
    begin = [] if format.begun(prompt) else tokenizer.encode(format.open[0], add_special_tokens=False)
    return [begin, tokenizer.encode(format.close[0], add_special_tokens=False)]

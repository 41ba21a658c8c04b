"""Which tokens begin and end a model's reasoning: what a budget for it is counted by."""

from __future__ import annotations

from cadence.entrypoints.openai.reasoning import CLOSE, OPEN
from cadence.text.tokenizer import Tokenizer

_FROM_THE_START = ("deepseek_r1",)  # formats whose models think from their first token, with or without the tag


def thinking_ids(parser: str, prompt: str, tokenizer: Tokenizer) -> list[list[int]]:
    """[what begins it, what ends it]. Nothing begins it where the output does: the prompt has the tag, or none is
    needed."""
    end = prompt.rstrip()
    opened = end.endswith(OPEN) or (parser in _FROM_THE_START and not end.endswith(CLOSE))
    begin = [] if opened else tokenizer.encode(OPEN, add_special_tokens=False)
    return [begin, tokenizer.encode(CLOSE, add_special_tokens=False)]

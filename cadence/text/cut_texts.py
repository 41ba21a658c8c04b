"""Texts as at most so many tokens: what is cut off is text, never the special tokens around it."""

from __future__ import annotations

from collections.abc import Sequence

from cadence.core.errors import InvalidRequestError
from cadence.text.text_frame import TextFrame
from cadence.text.tokenizer import Tokenizer


def room_in(frame: TextFrame, limit: int) -> int:
    """Tokens of text among `limit` tokens of a prompt."""
    if limit <= frame.size:
        message = f"truncate_prompt_tokens is {limit}, and {frame.size} tokens are special ones"
        raise InvalidRequestError(message, "truncate_prompt_tokens")
    return limit - frame.size


def encode_cut(tokenizer: Tokenizer, texts: Sequence[str], limit: int) -> list[list[int]]:
    """The tokens of each, of which the first ones are kept."""
    frame = TextFrame.of_one(tokenizer)
    room = room_in(frame, limit)
    return [frame.joined(ids[:room]) for ids in tokenizer.encode_batch(texts, add_special_tokens=False)]

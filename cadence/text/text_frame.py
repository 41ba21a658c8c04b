"""The special tokens that a tokenizer writes around a text, or around and between two, so that tokens of texts that
were cut still become the prompt that the model knows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cadence.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class TextFrame:
    before: tuple[int, ...] = ()
    between: tuple[int, ...] = ()
    after: tuple[int, ...] = ()
    tells_apart: bool = False  # tokens of the second text have a type of their own

    @classmethod
    def of_one(cls, tokenizer: Tokenizer) -> TextFrame:
        return cls._read(tokenizer.backend.encode("a"), 0)

    @classmethod
    def of_two(cls, tokenizer: Tokenizer) -> TextFrame:
        return cls._read(tokenizer.backend.encode("a", "a"), 1)

    @classmethod
    def _read(cls, encoding: Any, last: int) -> TextFrame:
        """last: number of the last text"""
        texts, ids = encoding.sequence_ids, encoding.ids
        first, end = texts.index(0), len(texts) - texts[::-1].index(last)
        between = [token for token, text in zip(ids[first:end], texts[first:end], strict=True) if text is None]
        types = encoding.type_ids
        return cls(tuple(ids[:first]), tuple(between), tuple(ids[end:]), types[end - 1] != types[first])

    @property
    def size(self) -> int:
        return len(self.before) + len(self.between) + len(self.after)

    def joined(self, first: Sequence[int], second: Sequence[int] = ()) -> list[int]:
        return [*self.before, *first, *self.between, *second, *self.after]

    def second_from(self, first: Sequence[int]) -> int:
        """The position of the second text; 0 where the model does not tell the two apart."""
        return len(self.before) + len(first) + len(self.between) if self.tells_apart else 0


def longest_first(first: int, second: int, room: int) -> tuple[int, int]:
    """How many tokens two texts of so many keep, where there is room for so many: the longer one is cut, then both to
    one half each. An odd one more is the longer one's, or the second's, as in `tokenizers`."""
    if first + second <= room:
        return first, second
    shorter = min(first, second)
    longer = max(shorter, room - shorter)
    if shorter + longer > room:
        shorter, longer = room // 2, room - room // 2
    return (longer, shorter) if first > second else (shorter, longer)

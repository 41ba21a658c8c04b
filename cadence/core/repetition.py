"""When an output has begun to repeat itself: the option, under vLLM's names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cadence.core.checks import integer, invalid

MAX_PATTERN = 4096  # tokens
_NAME = "repetition_detection"


@dataclass(frozen=True, slots=True)
class RepetitionDetectionParams:
    """An output ends where its last tokens are a pattern of `min_pattern_size` to `max_pattern_size` tokens,
    `min_count` times in a row. A `max_pattern_size` of 0 turns it off; a `min_pattern_size` of 0 is 1."""

    max_pattern_size: int = 0
    min_pattern_size: int = 0
    min_count: int = 0

    def __post_init__(self) -> None:
        largest = integer(f"{_NAME}.max_pattern_size", self.max_pattern_size, 0, MAX_PATTERN)
        integer(f"{_NAME}.min_pattern_size", self.min_pattern_size, 0, MAX_PATTERN)
        integer(f"{_NAME}.min_count", self.min_count, 0)
        if self.min_pattern_size > largest:
            raise invalid(f"{_NAME}.min_pattern_size", self.min_pattern_size, f"at most max_pattern_size ({largest})")
        if largest and self.min_count < 2:
            raise invalid(f"{_NAME}.min_count", self.min_count, "at least 2")

    @classmethod
    def of(cls, given: object) -> RepetitionDetectionParams | None:
        """Also out of a dict. None where nothing is asked for."""
        if given is None:
            return None
        if isinstance(given, Mapping) and set(given) <= set(cls.__slots__):
            given = cls(**given)
        if not isinstance(given, cls):
            raise invalid(_NAME, given, "RepetitionDetectionParams, or a dict of their names")
        return given if given.max_pattern_size else None

    @property
    def sizes(self) -> range:
        """Of the patterns that are looked for."""
        return range(max(self.min_pattern_size, 1), self.max_pattern_size + 1)

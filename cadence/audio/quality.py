"""Whether what was decoded can be speech: Whisper's thresholds, and when to try again."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class QualityLimits:
    """A value of None turns its rule off."""

    compression_ratio: float | None = 2.4  # text that compresses better repeats itself
    average_logprob: float | None = -1.0  # the model does not believe in tokens below
    no_speech: float | None = 0.6  # likelier than this, and tokens that the model does not believe in: silence


DEFAULT_QUALITY = QualityLimits()


@dataclass(frozen=True, slots=True)
class Quality:
    compression_ratio: float
    average_logprob: float

    def needs_retry(self, limits: QualityLimits) -> bool:
        repeats = limits.compression_ratio is not None and self.compression_ratio > limits.compression_ratio
        return repeats or self.is_doubtful(limits)

    def is_doubtful(self, limits: QualityLimits) -> bool:
        return limits.average_logprob is not None and self.average_logprob < limits.average_logprob


def compression_ratio(text: str) -> float:
    data = text.encode("utf-8", "replace")
    return len(data) / len(zlib.compress(data))


def average_logprob(logprobs: Sequence[float]) -> float:
    """Of the chosen tokens, the end of text among them; 0 where there is none."""
    return sum(logprobs) / len(logprobs) if logprobs else 0.0

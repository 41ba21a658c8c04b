"""Whether an output has begun to repeat itself."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from cadence.core.repetition import RepetitionDetectionParams


class RepetitionWatch(Protocol):
    def repeats(self, token_id: int) -> bool:
        """Takes the next token. -> whether the output now ends in a pattern that was said too often"""
        ...


class NoWatch:
    def repeats(self, token_id: int) -> bool:
        return False


class PatternWatch:
    """For every size of pattern: how many tokens in a row are equal to the one that many places before them."""

    def __init__(self, params: RepetitionDetectionParams) -> None:
        self._sizes_np = np.array(params.sizes, dtype=np.int64)
        self._needed_np = self._sizes_np * (params.min_count - 1)
        self._equal_np = np.zeros_like(self._sizes_np)
        self._tokens_np = np.full(256 + params.max_pattern_size, -1, dtype=np.int64)  # the first are before the output
        self._count = params.max_pattern_size

    def repeats(self, token_id: int) -> bool:
        if self._count == len(self._tokens_np):
            self._tokens_np = np.concatenate([self._tokens_np, np.empty_like(self._tokens_np)])
        same_np = self._tokens_np[self._count - self._sizes_np] == token_id
        self._equal_np = (self._equal_np + 1) * same_np
        self._tokens_np[self._count] = token_id
        self._count += 1
        return bool((self._equal_np >= self._needed_np).any())


def make_watch(params: RepetitionDetectionParams | None) -> RepetitionWatch:
    return NoWatch() if params is None else PatternWatch(params)

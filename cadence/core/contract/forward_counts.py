"""Counts the tokens of the model's forwards."""

from __future__ import annotations

import bisect

from cadence.core.contract.engine_state import FORWARD_TOKENS


class ForwardCounts:
    """Since the start. Two additions per forward."""

    def __init__(self) -> None:
        self.counts = [0] * (len(FORWARD_TOKENS) + 1)  # forwards by their tokens, in buckets
        self.tokens = 0  # of all forwards together

    def add(self, tokens: int, forwards: int = 1) -> None:
        self.counts[bisect.bisect_left(FORWARD_TOKENS, tokens)] += forwards
        self.tokens += tokens * forwards

"""Attention in chunks: the query at position p reads [p - p % chunk, p].

As with a sliding window the beginning of a table is given back, but a chunk at a time: once the next token begins a
chunk, nothing before it is read again.
"""

from __future__ import annotations

from math import gcd

from cadence.scheduler.kv.kinds.sliding import SlidingKind


class ChunkedKind(SlidingKind):
    def __init__(self, block_size: int, chunk: int, in_flight_tokens: int) -> None:
        super().__init__(block_size, chunk, in_flight_tokens)
        self._chunk = chunk
        # At most a chunk but for its last token, and the tokens in flight. A chunk may begin within a block, after as
        # many tokens as multiples of both leave.
        before = block_size - gcd(chunk, block_size)
        self._most_blocks = -(-(before + chunk - 1 + in_flight_tokens) // block_size)

    def first_needed(self, num_tokens: int) -> int:
        return num_tokens // self._chunk * self._chunk // self._block_size

    def next_release(self, first: int) -> int:
        """At the beginning of the first chunk that begins after the entry."""
        return -(-(first + 1) * self._block_size // self._chunk) * self._chunk

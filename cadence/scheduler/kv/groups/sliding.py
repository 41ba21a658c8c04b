"""Sliding-window attention: the query at position p reads [p - window + 1, p]."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cadence.scheduler.kv.groups.block import Block


class SlidingGroup:
    def __init__(self, block_size: int, window: int, in_flight_tokens: int) -> None:
        self._block_size = block_size
        self._window = window
        # Blocks are given back behind confirmed tokens: a request holds what the window, the tokens in flight
        # and an unaligned start can touch.
        self._most_blocks = (window - 1 + in_flight_tokens + block_size - 2) // block_size + 1

    def first_needed(self, num_tokens: int) -> int:
        return max(0, num_tokens - self._window + 1) // self._block_size

    def next_release(self, first: int) -> int:
        return (first + 1) * self._block_size + self._window - 1

    def peak_blocks(self, num_tokens: int) -> int:
        return min(-(-num_tokens // self._block_size), self._most_blocks)

    def longest_hit(self, cached: Mapping[bytes, Block], hashes: Sequence[bytes], limit: int) -> int:
        end = limit
        index = end - 1
        while end > 0:
            first = self.first_needed(end * self._block_size)
            while index >= first and hashes[index] in cached:
                index -= 1
            if index < first:
                return end
            end = index  # block `index` is missing: the hit ends before it
            index -= 1
        return 0

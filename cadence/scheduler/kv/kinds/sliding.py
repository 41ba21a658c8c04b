"""Sliding-window attention: the query at position p reads [p - window + 1, p].

The table grows as that of full attention does, and its beginning is given back: a forward stores the keys of all its
tokens before it reads any, so a request holds blocks for every token in flight, whatever the window.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cadence.scheduler.kv.kinds.base import ByToken, Growth
from cadence.scheduler.kv.kinds.block import Block


class SlidingKind:
    def __init__(self, block_size: int, window: int, in_flight_tokens: int) -> None:
        self.growth: Growth = ByToken(block_size)
        self._block_size = block_size
        self._window = window
        # Blocks are given back after confirmed tokens: a request holds what the window, the tokens in flight
        # and an unaligned start can touch.
        self._most_blocks = (window - 1 + in_flight_tokens + block_size - 2) // block_size + 1

    def peak_blocks(self, num_tokens: int, source_len: int) -> int:
        return min(self.growth.length(num_tokens, source_len), self._most_blocks)

    def first_needed(self, num_tokens: int) -> int:
        return max(0, num_tokens - self._window + 1) // self._block_size

    def next_release(self, first: int) -> int:
        return (first + 1) * self._block_size + self._window - 1

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

    def hit_table(self, cached: Mapping[bytes, Block], hashes: Sequence[bytes], hit: int, null: Block) -> list[Block]:
        first = self.first_needed(hit * self._block_size)
        return [null] * first + [cached[digest] for digest in hashes[first:hit]]

    def filled(self, table: list[Block], start: int, stop: int) -> list[Block]:
        return table[start:stop]

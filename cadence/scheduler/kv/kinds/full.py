"""Full attention: every query reads everything before it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cadence.scheduler.kv.kinds.base import NEVER, ByToken, Growth
from cadence.scheduler.kv.kinds.block import Block


class FullKind:
    def __init__(self, block_size: int) -> None:
        self.growth: Growth = ByToken(block_size)

    def peak_blocks(self, num_tokens: int, source_len: int) -> int:
        return self.growth.length(num_tokens, source_len)

    def first_needed(self, num_tokens: int) -> int:
        return 0

    def next_release(self, first: int) -> int:
        return NEVER

    def longest_hit(self, cached: Mapping[bytes, Block], hashes: Sequence[bytes], limit: int) -> int:
        for index in range(limit):
            if hashes[index] not in cached:
                return index
        return limit

    def hit_table(self, cached: Mapping[bytes, Block], hashes: Sequence[bytes], hit: int, null: Block) -> list[Block]:
        return [cached[digest] for digest in hashes[:hit]]

    def filled(self, table: list[Block], start: int, stop: int) -> list[Block]:
        return table[start:stop]

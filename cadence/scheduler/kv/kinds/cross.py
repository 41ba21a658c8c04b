"""Cross attention: every query reads all of the source, whose keys an encoder has written.

The blocks are taken at once, when a request gets its row, and never grow. Requests of one source share them, all or
none of them: the encoder writes a source as a whole. How many tokens of a request are cached has no bearing on it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cadence.scheduler.kv.kinds.base import NEVER, BySource, Growth
from cadence.scheduler.kv.kinds.block import Block


class CrossKind:
    def __init__(self, block_size: int) -> None:
        self.growth: Growth = BySource(block_size)

    def peak_blocks(self, num_tokens: int, source_len: int) -> int:
        return self.growth.length(num_tokens, source_len)

    def first_needed(self, num_tokens: int) -> int:
        return 0

    def next_release(self, first: int) -> int:
        return NEVER

    def longest_hit(self, cached: Mapping[bytes, Block], hashes: Sequence[bytes], limit: int) -> int:
        return limit

    def hit_table(self, cached: Mapping[bytes, Block], hashes: Sequence[bytes], hit: int, null: Block) -> list[Block]:
        found = [cached[digest] for digest in hashes if digest in cached]
        return found if len(found) == len(hashes) else []

    def filled(self, table: list[Block], start: int, stop: int) -> list[Block]:
        return []

"""Full attention: every query reads everything before it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cadence.scheduler.kv.groups.base import NEVER
from cadence.scheduler.kv.groups.block import Block


class FullGroup:
    def __init__(self, block_size: int) -> None:
        self._block_size = block_size

    def first_needed(self, num_tokens: int) -> int:
        return 0

    def next_release(self, first: int) -> int:
        return NEVER

    def peak_blocks(self, num_tokens: int) -> int:
        return -(-num_tokens // self._block_size)

    def longest_hit(self, cached: Mapping[bytes, Block], hashes: Sequence[bytes], limit: int) -> int:
        for index in range(limit):
            if hashes[index] not in cached:
                return index
        return limit

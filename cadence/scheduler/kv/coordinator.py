"""The groups of a model as one: the longest prefix they all hold, the blocks they need together."""

from __future__ import annotations

from collections.abc import Sequence

from cadence.core.model.kv_spec import KVLayout
from cadence.scheduler.kv.kinds.base import Growth
from cadence.scheduler.kv.kinds.block import Block, RequestBlocks
from cadence.scheduler.kv.kinds.choose import kinds_of
from cadence.scheduler.kv.prefix import PrefixIndex


class KVCoordinator:
    def __init__(self, layout: KVLayout, in_flight_tokens: int) -> None:
        """in_flight_tokens: most tokens of one request in steps that have not returned."""
        self.kinds = kinds_of(layout, in_flight_tokens)  # by group
        self.num_growing = sum(kind.growth.by_token for kind in self.kinds)
        self.source_groups = [group for group, kind in enumerate(self.kinds) if not kind.growth.by_token]
        growths = dict.fromkeys(kind.growth for kind in self.kinds)
        self.growths = [(growth, self._groups_of(growth)) for growth in growths]  # each, and the groups that have it

    def _groups_of(self, growth: Growth) -> list[int]:
        return [group for group, kind in enumerate(self.kinds) if kind.growth == growth]

    def peak_blocks(self, num_tokens: int, source_len: int) -> int:
        """Most blocks a request of `num_tokens` holds at any one time, over all groups."""
        count = 0
        for kind in self.kinds:
            count += kind.peak_blocks(num_tokens, source_len)
        return count

    def longest_hit(self, index: PrefixIndex, hashes: Sequence[bytes], limit: int) -> int:
        """Leading blocks of tokens, at most `limit`, that every group can go on from.

        Each group may shorten what another accepted, so it goes round until none does.
        """
        hit = limit
        while True:
            before = hit
            for kind, cached in zip(self.kinds, index.by_group, strict=True):
                hit = kind.longest_hit(cached, hashes, hit)
            if hit == before:
                return hit

    def hit_tables(self, index: PrefixIndex, blocks: RequestBlocks, hit: int, null: Block) -> tuple[list[Block], ...]:
        """Per group the table of a hit of `hit` blocks of tokens; those of a source are all found, or none is."""
        each = zip(self.kinds, index.by_group, strict=True)
        hashes = {True: blocks.hashes, False: blocks.source_hashes}  # by token, or of the source
        tables = tuple(kind.hit_table(cached, hashes[kind.growth.by_token], hit, null) for kind, cached in each)
        if not all(tables[group] for group in self.source_groups):
            for group in self.source_groups:
                tables[group].clear()
        return tables

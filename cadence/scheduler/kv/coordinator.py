"""The groups of a model as one: the longest prefix they all hold, the blocks they need together."""

from __future__ import annotations

from collections.abc import Sequence

from cadence.core.kv_spec import KVLayout
from cadence.scheduler.kv.groups.base import GroupPolicy
from cadence.scheduler.kv.groups.block import Block
from cadence.scheduler.kv.groups.full import FullGroup
from cadence.scheduler.kv.groups.sliding import SlidingGroup
from cadence.scheduler.kv.prefix import PrefixIndex


class KVCoordinator:
    def __init__(self, layout: KVLayout, in_flight_tokens: int) -> None:
        """in_flight_tokens: most tokens of one request in steps that have not returned."""
        self.block_size = layout.block_size
        self.groups: tuple[GroupPolicy, ...] = tuple(
            SlidingGroup(layout.block_size, group.window, in_flight_tokens)
            if group.window
            else FullGroup(layout.block_size)
            for group in layout.groups
        )

    def peak_blocks(self, num_tokens: int) -> int:
        """Most blocks a request of `num_tokens` holds at any one time, over all groups."""
        return sum(group.peak_blocks(num_tokens) for group in self.groups)

    def longest_hit(self, index: PrefixIndex, hashes: Sequence[bytes], limit: int) -> int:
        """Leading blocks, at most `limit`, that every group can go on from.

        Each group may shorten what another accepted, so it goes round until nobody does.
        """
        hit = limit
        while True:
            before = hit
            for group, cached in zip(self.groups, index.by_group, strict=True):
                hit = group.longest_hit(cached, hashes, hit)
            if hit == before:
                return hit

    def hit_tables(self, index: PrefixIndex, hashes: Sequence[bytes], hit: int, null: Block) -> tuple[list[Block], ...]:
        """Per group the table of a hit of `hit` blocks, null where nothing is read any more."""
        tables = []
        for group, cached in zip(self.groups, index.by_group, strict=True):
            first = group.first_needed(hit * self.block_size)
            tables.append([null] * first + [cached[digest] for digest in hashes[first:hit]])
        return tuple(tables)

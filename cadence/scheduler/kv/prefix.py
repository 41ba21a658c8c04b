"""Which blocks hold which prefix: digest to block, one map per KV group."""

from __future__ import annotations

from cadence.scheduler.kv.kinds.block import Block


class PrefixIndex:
    """A block is listed at most once, a digest at most once per group: the first block that held it stays."""

    def __init__(self, num_groups: int) -> None:
        self.by_group: tuple[dict[bytes, Block], ...] = tuple({} for _ in range(num_groups))

    def add(self, block: Block, group: int, digest: bytes) -> None:
        if self.by_group[group].setdefault(digest, block) is block:
            block.group, block.digest = group, digest

    def drop(self, block: Block) -> None:
        if block.digest:
            del self.by_group[block.group][block.digest]
            block.digest = b""

    def clear(self) -> None:
        for blocks in self.by_group:
            for block in blocks.values():
                block.digest = b""
            blocks.clear()

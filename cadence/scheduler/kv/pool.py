"""The one pool of KV blocks: reference counts, the free list, lazy eviction."""

from __future__ import annotations

from collections.abc import Iterable

from cadence.scheduler.kv.free_list import FreeList
from cadence.scheduler.kv.kinds.block import NULL_BLOCK_ID, Block, PoolBlocks
from cadence.scheduler.kv.prefix import PrefixIndex


class BlockPool:
    """Every block but the null one is either free (ref 0, in the free list) or named by `ref` tables.

    A free block keeps its contents and its place in the prefix index until it is allocated anew.
    """

    def __init__(self, num_blocks: int, num_groups: int, keeps_unused: bool = True) -> None:
        """keeps_unused: without, a block leaves the index when no table names it."""
        self.num_blocks = num_blocks
        self._keeps_unused = keeps_unused
        self.blocks = PoolBlocks()
        self.null = self.blocks[NULL_BLOCK_ID]
        self.index = PrefixIndex(num_groups)
        self.free = FreeList(self.blocks, NULL_BLOCK_ID + 1, num_blocks)

    @property
    def num_free(self) -> int:
        return self.free.size

    @property
    def num_usable(self) -> int:
        return self.num_blocks - 1

    def allocate(self, count: int) -> list[Block]:
        """Blocks with one reference each. The caller has checked `num_free`."""
        taken = self.free.pop(count)
        for block in taken:
            if block.digest:
                self.index.drop(block)
            block.ref = 1
        return taken

    def acquire(self, block: Block) -> None:
        """One more table names a cached block."""
        if block.ref == 0:
            self.free.remove(block)
        block.ref += 1

    def release(self, blocks: Iterable[Block]) -> None:
        """One table less names each of these. Those without cached contents are reused first."""
        null, unused = self.null, []
        for block in blocks:
            if block is null:
                continue
            block.ref -= 1
            if block.ref:
                continue
            if block.digest and not self._keeps_unused:
                self.index.drop(block)
            if block.digest:
                self.free.append(block)
            else:
                unused.append(block)
        self.free.prepend(unused)

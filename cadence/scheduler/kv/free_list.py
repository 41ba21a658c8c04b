"""The free blocks, least recently used first, with O(1) removal from the middle."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from cadence.scheduler.kv.kinds.block import Block, PoolBlocks


class FreeList:
    """A ring through blocks and a sentinel: what follows the sentinel is reused first, what precedes it last.

    Links are numbers, so that no block holds another: a pool goes when its last owner does.
    """

    __slots__ = ("_blocks", "_ends", "_next", "_prev", "size")

    def __init__(self, blocks: PoolBlocks, first: int, end: int) -> None:
        """Of the blocks `first` to `end` - 1, in this order."""
        self._blocks = blocks
        self._ends = end  # the sentinel
        self._prev = list(range(-1, end))
        self._next = list(range(1, end + 2))
        self._prev[first], self._next[end] = end, first
        self.size = end - first

    def append(self, block: Block) -> None:
        """Reused last."""
        self._insert(self._prev[self._ends], block.id, self._ends)

    def prepend(self, blocks: Sequence[Block]) -> None:
        """Reused first, the last of these before the others."""
        after = self._next[self._ends]
        for block in blocks:
            index = block.id
            self._next[index], self._prev[after] = after, index
            after = index
        self._next[self._ends], self._prev[after] = after, self._ends
        self.size += len(blocks)

    def _insert(self, before: int, index: int, after: int) -> None:
        self._next[before] = self._prev[after] = index
        self._prev[index], self._next[index] = before, after
        self.size += 1

    def remove(self, block: Block) -> None:
        before, after = self._prev[block.id], self._next[block.id]
        self._next[before], self._prev[after] = after, before
        self.size -= 1

    def pop(self, count: int) -> list[Block]:
        """The least recently used blocks. The caller has checked that there are so many."""
        taken, index = [], self._next[self._ends]
        for _ in range(count):
            taken.append(self._blocks[index])
            index = self._next[index]
        self._next[self._ends], self._prev[index] = index, self._ends
        self.size -= count
        return taken

    def __iter__(self) -> Iterator[Block]:
        index = self._next[self._ends]
        while index != self._ends:
            yield self._blocks[index]
            index = self._next[index]

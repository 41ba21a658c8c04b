"""The free blocks, least recently used first, with O(1) removal from the middle."""

from __future__ import annotations

from collections.abc import Iterator

from cadence.scheduler.kv.block import Block


class FreeList:
    """An intrusive ring around a sentinel: sentinel.next is reused first, sentinel.prev last."""

    __slots__ = ("_ends", "size")

    def __init__(self) -> None:
        self._ends = Block(-1)
        self.size = 0

    def append(self, block: Block) -> None:
        """Reused last."""
        self._insert(self._ends.prev, block, self._ends)

    def prepend(self, block: Block) -> None:
        """Reused first."""
        self._insert(self._ends, block, self._ends.next)

    def _insert(self, before: Block, block: Block, after: Block) -> None:
        before.next = after.prev = block
        block.prev, block.next = before, after
        self.size += 1

    def remove(self, block: Block) -> None:
        block.prev.next, block.next.prev = block.next, block.prev
        self.size -= 1

    def pop(self) -> Block:
        """The least recently used block. The caller has checked that there is one."""
        block = self._ends.next
        self.remove(block)
        return block

    def __iter__(self) -> Iterator[Block]:
        block = self._ends.next
        while block is not self._ends:
            yield block
            block = block.next

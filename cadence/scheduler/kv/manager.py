"""The KV cache as the scheduler sees it: look up, begin, grow, register, give back."""

from __future__ import annotations

from dataclasses import dataclass

from cadence.core.kv_spec import KVLayout
from cadence.scheduler.kv.coordinator import KVCoordinator
from cadence.scheduler.kv.groups.base import NEVER
from cadence.scheduler.kv.groups.block import Block, RequestBlocks
from cadence.scheduler.kv.hashing import extend_hashes, root_digest
from cadence.scheduler.kv.pool import BlockPool


@dataclass(frozen=True, slots=True)
class PrefixHit:
    """A cached prefix, not yet acquired."""

    num_blocks: int
    tables: tuple[list[Block], ...]  # per group [num_blocks]


class KVManager:
    def __init__(self, layout: KVLayout, num_blocks: int, caching: bool, in_flight_tokens: int) -> None:
        self.block_size = layout.block_size
        self.num_groups = len(layout.groups)
        self._caching = caching
        self._pool = BlockPool(num_blocks, self.num_groups)
        self._groups = KVCoordinator(layout, in_flight_tokens)

    @property
    def num_blocks(self) -> int:
        return self._pool.num_blocks

    @property
    def cached_ids(self) -> list[int]:
        """The blocks in the prefix cache."""
        return [block.id for block in self._pool.blocks.values() if block.digest]

    @property
    def num_free(self) -> int:
        """Blocks that can be allocated now; cached ones that nobody uses are among them."""
        return self._pool.num_free

    @property
    def usage(self) -> float:
        """Share of the pool that requests hold, 0 to 1."""
        return 1.0 - self._pool.num_free / self._pool.num_usable

    def new_tables(self, salt: str, adapter: str = "") -> RequestBlocks:
        return RequestBlocks(self.num_groups, root_digest(salt, adapter))

    def find_prefix(self, blocks: RequestBlocks, tokens: list[int], read: bool) -> PrefixHit:
        """The longest cached prefix of `tokens` that leaves at least one of them to compute."""
        limit = (len(tokens) - 1) // self.block_size
        if not (self._caching and read) or limit == 0:
            return PrefixHit(0, tuple([] for _ in range(self.num_groups)))
        extend_hashes(blocks, tokens, self.block_size, limit)
        index = self._pool.index
        hit = self._groups.longest_hit(index, blocks.hashes, limit)
        return PrefixHit(hit, self._groups.hit_tables(index, blocks.hashes, hit, self._pool.null))

    def fits(self, hit: PrefixHit, num_tokens: int) -> bool:
        """Whether a request of `num_tokens` that begins with this hit could be held by what is free now."""
        null = self._pool.null
        held = revived = 0
        for table in hit.tables:
            for block in table:
                held += block is not null
                revived += block is not null and block.ref == 0
        return self._groups.peak_blocks(num_tokens) - held <= self._pool.num_free - revived

    def begin(self, blocks: RequestBlocks, hit: PrefixHit, num_tokens: int) -> None:
        """Takes the hit and adds blocks to hold `num_tokens`. The caller has checked that they fit."""
        null = self._pool.null
        for group, table in enumerate(hit.tables):
            blocks.firsts[group] = sum(block is null for block in table)
            for block in table:
                if block is not null:
                    self._pool.acquire(block)
            blocks.tables[group].extend(table)
        self.grow(blocks, num_tokens)

    def blocks_to_grow(self, blocks: RequestBlocks, num_tokens: int) -> int:
        """Blocks to allocate, over all groups, so that the tables hold `num_tokens`."""
        return (-(-num_tokens // self.block_size) - len(blocks.tables[0])) * self.num_groups

    def grow(self, blocks: RequestBlocks, num_tokens: int) -> list[list[int]]:
        """Makes the tables hold `num_tokens`; per group the ids that were added."""
        count = -(-num_tokens // self.block_size) - len(blocks.tables[0])
        added = []
        for table in blocks.tables:
            new = self._pool.allocate(count)
            table.extend(new)
            added.append([block.id for block in new])
        return added

    def capacity(self, blocks: RequestBlocks) -> int:
        """Tokens the tables can hold."""
        return len(blocks.tables[0]) * self.block_size

    def register(self, blocks: RequestBlocks, tokens: list[int], start: int, stop: int) -> None:
        """Lists blocks [start, stop) in the prefix index. Their tokens are known and computed by a plan sent."""
        extend_hashes(blocks, tokens, self.block_size, stop)
        null, index = self._pool.null, self._pool.index
        for group, table in enumerate(blocks.tables):
            for number in range(start, stop):
                if table[number] is not null:
                    index.add(table[number], group, blocks.hashes[number])

    def first_to_register(self, hit: PrefixHit) -> int:
        """Blocks of a new request that need no registering; NEVER without prefix caching."""
        return hit.num_blocks if self._caching else NEVER

    def next_release(self, blocks: RequestBlocks) -> int:
        """Confirmed tokens at which the next block leaves its window."""
        return min(group.next_release(first) for group, first in zip(self._groups.groups, blocks.firsts, strict=True))

    def release_outside(self, blocks: RequestBlocks, confirmed: int) -> None:
        """Gives back what no query from position `confirmed` on reads."""
        pool = self._pool
        for index, group in enumerate(self._groups.groups):
            old, first = blocks.firsts[index], group.first_needed(confirmed)
            if first <= old:
                continue
            table = blocks.tables[index]
            pool.release(reversed(table[old:first]))
            table[old:first] = [pool.null] * (first - old)
            blocks.firsts[index] = first

    def held_alone(self, blocks: RequestBlocks) -> int:
        """Blocks that become free when this request lets go of them."""
        return sum(block.ref == 1 for table in blocks.tables for block in table)

    def release(self, blocks: RequestBlocks) -> None:
        """Gives all blocks back, the ends of prefixes to be reused before their beginnings."""
        for table in blocks.tables:
            self._pool.release(reversed(table))
            table.clear()
        blocks.firsts = [0] * self.num_groups

    def forget(self, blocks: RequestBlocks) -> None:
        """Takes all blocks of this request out of the prefix index."""
        for table in blocks.tables:
            for block in table:
                self._pool.index.drop(block)

    def reset_prefix_cache(self) -> None:
        self._pool.index.clear()

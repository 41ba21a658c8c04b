"""The KV cache as the scheduler sees it: look up, begin, grow, register, give back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cadence.core.inputs.attachments import KeysSpan
from cadence.core.model.kv_spec import KVLayout
from cadence.scheduler.kv.coordinator import KVCoordinator
from cadence.scheduler.kv.hashing import extend_hashes, root_digest, source_digests
from cadence.scheduler.kv.kinds.base import NEVER
from cadence.scheduler.kv.kinds.block import Block, RequestBlocks
from cadence.scheduler.kv.pool import BlockPool

HitLimit = Callable[[Sequence[bytes], int], int]  # (hashes of blocks, most of them) -> how many one can go on from


@dataclass(frozen=True, slots=True)
class PrefixHit:
    """A cached prefix, not yet acquired."""

    num_blocks: int  # of tokens
    tables: tuple[list[Block], ...]  # per group, as its kind begins after so many
    source_len: int = 0  # positions of what the request brings for cross attention
    lacks_source: bool = False  # no blocks hold them


class KVManager:
    def __init__(
        self,
        layout: KVLayout,
        num_blocks: int,
        caching: bool,
        in_flight_tokens: int,
        hit_limits: Sequence[HitLimit] = (),
    ) -> None:
        """hit_limits: of what requests need beside blocks, to go on from a prefix"""
        self.block_size = layout.block_size
        self.num_groups = len(layout.groups)
        self._caching = caching
        self._hit_limits = hit_limits
        self._pool = BlockPool(num_blocks, self.num_groups, keeps_unused=caching)
        self._groups = KVCoordinator(layout, in_flight_tokens)
        self._kinds = self._groups.kinds
        self._growths = self._groups.growths
        self._no_hit = PrefixHit(0, tuple([] for _ in range(self.num_groups)))

    @property
    def num_blocks(self) -> int:
        return self._pool.num_blocks

    @property
    def num_growing(self) -> int:
        """Groups that take a block more with every block of tokens."""
        return self._groups.num_growing

    @property
    def cached_ids(self) -> list[int]:
        """The blocks in the prefix cache."""
        return [block.id for block in self._pool.blocks.values() if block.digest]

    @property
    def num_free(self) -> int:
        """Blocks that can be allocated now; cached ones that no request uses are among them."""
        return self._pool.num_free

    @property
    def num_usable(self) -> int:
        """Blocks that requests may hold together."""
        return self._pool.num_usable

    @property
    def usage(self) -> float:
        """Share of the pool that requests hold, 0 to 1."""
        return 1.0 - self._pool.num_free / max(self._pool.num_usable, 1) if self.num_groups else 0.0

    def new_tables(
        self, salt: str, keys: str = "", source_len: int = 0, spans: Sequence[KeysSpan] = ()
    ) -> RequestBlocks:
        """keys: digest of what changes the keys of its tokens. source_len: positions of what it brings for cross
        attention, whose content is part of that digest. spans: tokens that stand for something else"""
        blocks = RequestBlocks(self.num_groups, root_digest(salt, keys), source_len, spans)
        if source_len:
            blocks.source_hashes = source_digests(blocks.root, -(-source_len // self.block_size))
        return blocks

    def find_prefix(self, blocks: RequestBlocks, tokens: list[int], read: bool) -> PrefixHit:
        """The longest cached prefix of `tokens` that leaves at least one of them to compute; beside it, its source.

        A source is shared whether or not the request reads cached prefixes: no token of it is computed either way."""
        limit = (len(tokens) - 1) // self.block_size if self._caching and read else 0
        source_len = blocks.source_len
        if limit == 0 and not source_len:
            return self._no_hit
        extend_hashes(blocks, tokens, self.block_size, limit)
        index = self._pool.index
        hit = self._longest_hit(blocks.hashes, limit)
        for span in reversed(blocks.spans):
            if span.whole and span.start < hit * self.block_size < span.end:
                hit = self._longest_hit(blocks.hashes, span.start // self.block_size)
        tables = self._groups.hit_tables(index, blocks, hit, self._pool.null)
        lacks = source_len > 0 and not all(tables[group] for group in self._groups.source_groups)
        return PrefixHit(num_blocks=hit, tables=tables, source_len=source_len, lacks_source=lacks)

    def _longest_hit(self, hashes: Sequence[bytes], limit: int) -> int:
        """Each may shorten what another accepted."""
        hit = self._groups.longest_hit(self._pool.index, hashes, limit)
        for shorten in self._hit_limits:
            hit = shorten(hashes, hit)
        return hit if hit == limit else self._longest_hit(hashes, hit)

    def fits(self, hit: PrefixHit, num_tokens: int) -> bool:
        """Whether a request of `num_tokens` that begins with this hit could be held by what is free now."""
        null = self._pool.null
        held = revived = 0
        for table in hit.tables:
            for block in table:
                held += block is not null
                revived += block is not null and block.ref == 0
        return self._groups.peak_blocks(num_tokens, hit.source_len) - held <= self._pool.num_free - revived

    def begin(self, blocks: RequestBlocks, hit: PrefixHit, num_tokens: int) -> None:
        """Takes the hit and adds blocks to hold `num_tokens`. The caller has checked that they fit."""
        pool, done = self._pool, hit.num_blocks * self.block_size
        for group, table in enumerate(hit.tables):
            blocks.firsts[group] = self._kinds[group].first_needed(done)
            for block in table:
                if block is not pool.null:
                    pool.acquire(block)
            blocks.tables[group].extend(table)
        self.grow(blocks, num_tokens)
        blocks.lacks_source = hit.lacks_source
        if hit.lacks_source:
            self._list_source(blocks)

    def _list_source(self, blocks: RequestBlocks) -> None:
        """At once: the next request of the same plan may share it, because a source is written before any is read."""
        for group in self._groups.source_groups:
            for block, digest in zip(blocks.tables[group], blocks.source_hashes, strict=True):
                self._pool.index.add(block, group, digest)

    def blocks_to_grow(self, blocks: RequestBlocks, num_tokens: int) -> int:
        """Blocks to allocate, over all groups, so that the tables hold `num_tokens`, no fewer than now."""
        count = 0
        for growth, groups in self._growths:
            count += (growth.length(num_tokens, blocks.source_len) - len(blocks.tables[groups[0]])) * len(groups)
        return count

    def grow(self, blocks: RequestBlocks, num_tokens: int) -> list[tuple[int, int, list[int]]]:
        """Makes the tables hold `num_tokens` -> (group, index of the first new entry, ids) of those that grew."""
        added = []
        for growth, groups in self._growths:
            start = len(blocks.tables[groups[0]])
            count = growth.length(num_tokens, blocks.source_len) - start
            for group in groups if count else ():
                new = self._pool.allocate(count)
                blocks.tables[group].extend(new)
                added.append((group, start, [block.id for block in new]))
        return added

    def capacity(self, blocks: RequestBlocks) -> int:
        """Tokens the tables can hold: as many as the one that holds the fewest."""
        tokens = NEVER
        for growth, groups in self._growths:
            tokens = min(tokens, growth.capacity(len(blocks.tables[groups[0]])))
        return tokens

    def register(self, blocks: RequestBlocks, tokens: list[int], start: int, stop: int) -> None:
        """Lists blocks of tokens [start, stop) in the prefix index. All are known, and computed by a plan sent."""
        extend_hashes(blocks, tokens, self.block_size, stop)
        null, index, hashes = self._pool.null, self._pool.index, blocks.hashes
        for group, table in enumerate(blocks.tables):
            for number, block in enumerate(self._kinds[group].filled(table, start, stop), start):
                if block is not null:
                    index.add(block, group, hashes[number])

    def first_to_register(self, hit: PrefixHit) -> int:
        """Blocks of a new request that need no registering; NEVER without prefix caching."""
        return hit.num_blocks if self._caching else NEVER

    def next_release(self, blocks: RequestBlocks) -> int:
        """Confirmed tokens at which the next block is needed no more."""
        tokens = NEVER
        for kind, first in zip(self._kinds, blocks.firsts, strict=True):
            tokens = min(tokens, kind.next_release(first))
        return tokens

    def release_outside(self, blocks: RequestBlocks, confirmed: int) -> None:
        """Gives back what no query from position `confirmed` on reads."""
        pool = self._pool
        for group, kind in enumerate(self._kinds):
            old, first = blocks.firsts[group], kind.first_needed(confirmed)
            if first <= old:
                continue
            table = blocks.tables[group]
            pool.release(reversed(table[old:first]))
            table[old:first] = [pool.null] * (first - old)
            blocks.firsts[group] = first

    def held_alone(self, blocks: RequestBlocks) -> int:
        """Blocks that become free when this request lets go of them."""
        count = 0
        for table in blocks.tables:
            for block in table:
                count += block.ref == 1
        return count

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

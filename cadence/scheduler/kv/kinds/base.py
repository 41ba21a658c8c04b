"""What every kind of KV group answers about the table that a request has in it.

Progress is counted in tokens of the request. Tables of one request may have different lengths: each group's kind says
how its own grows. Groups of equal growth have tables of one length, and are looked at once for all of them.

A request may bring a source beside its tokens, which an encoder reads and cross attention looks at: `source_len` is
how many positions of it are kept, 0 without one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

from cadence.scheduler.kv.kinds.block import Block

NEVER = 1 << 60  # tokens: more than any request will have


class Growth(Protocol):
    """How long a table is. Comparable and hashable."""

    by_token: ClassVar[bool]  # it takes a block more with every block of tokens; else all are taken at once

    def length(self, num_tokens: int, source_len: int) -> int:
        """Entries of the table once it holds `num_tokens`."""
        ...

    def capacity(self, length: int) -> int:
        """Tokens that a table of `length` entries holds; NEVER: as many as there may be."""
        ...


@dataclass(frozen=True, slots=True)
class ByToken:
    """Entry i holds tokens [i * block_size, (i + 1) * block_size)."""

    block_size: int
    by_token: ClassVar[bool] = True

    def length(self, num_tokens: int, source_len: int) -> int:
        return -(-num_tokens // self.block_size)

    def capacity(self, length: int) -> int:
        return length * self.block_size


@dataclass(frozen=True, slots=True)
class BySource:
    """Entry i holds positions [i * block_size, (i + 1) * block_size) of the source."""

    block_size: int
    by_token: ClassVar[bool] = False

    def length(self, num_tokens: int, source_len: int) -> int:
        return -(-source_len // self.block_size)

    def capacity(self, length: int) -> int:
        return NEVER


class KVKind(Protocol):
    growth: Growth

    def peak_blocks(self, num_tokens: int, source_len: int) -> int:
        """Most blocks a request of `num_tokens` holds at any one time."""
        ...

    def first_needed(self, num_tokens: int) -> int:
        """Index of the first entry that queries at position `num_tokens` and later may read."""
        ...

    def next_release(self, first: int) -> int:
        """Computed tokens at which entry `first` is needed no more."""
        ...

    def longest_hit(self, cached: Mapping[bytes, Block], hashes: Sequence[bytes], limit: int) -> int:
        """Most leading blocks of tokens, at most `limit`, after which a request can go on from cached blocks alone."""
        ...

    def hit_table(self, cached: Mapping[bytes, Block], hashes: Sequence[bytes], hit: int, null: Block) -> list[Block]:
        """Entries with which a request begins that goes on after `hit` blocks of tokens; null where none is read.
        As many as those of other groups of the same growth. hashes: of blocks of tokens, or of the source"""
        ...

    def filled(self, table: list[Block], start: int, stop: int) -> list[Block]:
        """What the prefix index may list of blocks of tokens [start, stop): one entry for each, or none for any."""
        ...

"""What distinguishes one KV group from another: which past blocks a query still reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from cadence.scheduler.kv.groups.block import Block

NEVER = 1 << 60  # tokens: more than any request will have


class GroupPolicy(Protocol):
    def first_needed(self, num_tokens: int) -> int:
        """Index of the first block that queries at position `num_tokens` and later may read."""
        ...

    def next_release(self, first: int) -> int:
        """Computed tokens at which block `first` is needed no more."""
        ...

    def peak_blocks(self, num_tokens: int) -> int:
        """Most blocks a request of `num_tokens` holds at any one time."""
        ...

    def longest_hit(self, cached: Mapping[bytes, Block], hashes: Sequence[bytes], limit: int) -> int:
        """Most leading blocks, at most `limit`, after which a request can go on from cached blocks alone."""
        ...

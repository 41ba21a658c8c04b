"""A kind of KV group that no model has yet: blocks for what a request came with beside its tokens, all taken at once.

It is not in the table of kinds: `with_source_kind` puts it there, as a line of that table would.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import ClassVar
from unittest.mock import patch

from cadence.core.kv_spec import LayerKV
from cadence.scheduler.kv.kinds.base import NEVER, Growth
from cadence.scheduler.kv.kinds.block import Block
from cadence.scheduler.kv.kinds.choose import KINDS

SOURCE = -1  # in the place of a window
SOURCE_BLOCKS = 3


class SourceKV(LayerKV):
    __slots__ = ()

    @property
    def kind(self) -> str:
        return "source"


@dataclass(frozen=True, slots=True)
class Once:
    """All entries are there from the beginning."""

    by_token: ClassVar[bool] = False

    def length(self, num_tokens: int) -> int:
        return SOURCE_BLOCKS

    def capacity(self, length: int) -> int:
        return NEVER if length == SOURCE_BLOCKS else 0


class SourceKind:
    def __init__(self) -> None:
        self.growth: Growth = Once()

    def peak_blocks(self, num_tokens: int) -> int:
        return SOURCE_BLOCKS

    def first_needed(self, num_tokens: int) -> int:
        return 0

    def next_release(self, first: int) -> int:
        return NEVER

    def longest_hit(self, cached: Mapping[bytes, Block], hashes: Sequence[bytes], limit: int) -> int:
        return limit

    def hit_table(self, cached: Mapping[bytes, Block], hashes: Sequence[bytes], hit: int, null: Block) -> list[Block]:
        return []

    def filled(self, table: list[Block], start: int, stop: int) -> list[Block]:
        return []


def with_source_kind() -> AbstractContextManager[object]:
    """While kinds are chosen for a layout."""
    return patch.dict(KINDS, {"source": lambda group, block_size, in_flight: SourceKind()})


def layer_of(window: int) -> LayerKV:
    return SourceKV(1, 1, SOURCE) if window == SOURCE else LayerKV(1, 1, window)


def source_of(prompt: list[int]) -> list[int]:
    """What its blocks hold, a number each."""
    return [hash((number, *prompt)) for number in range(SOURCE_BLOCKS)]


def needed_by(window: int, table: list[int], start: int, end: int, size: int) -> list[int]:
    """Blocks of a table that computing tokens [start, end) reads or writes. size: tokens of a block"""
    if window == SOURCE:
        return table
    first = max(0, start - window + 1) if window else 0
    return table[first // size : -(-end // size)]

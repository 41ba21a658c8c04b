"""The table of kinds, by their names in a layout."""

from __future__ import annotations

from collections.abc import Callable

from cadence.core.model.kv_spec import CHUNKED, CROSS, FULL, SLIDING, KVGroup, KVLayout
from cadence.scheduler.kv.kinds.base import KVKind
from cadence.scheduler.kv.kinds.chunked import ChunkedKind
from cadence.scheduler.kv.kinds.cross import CrossKind
from cadence.scheduler.kv.kinds.full import FullKind
from cadence.scheduler.kv.kinds.sliding import SlidingKind

# Name -> maker, of a group, the tokens of a block, and the most tokens of one request in flight.
KINDS: dict[str, Callable[[KVGroup, int, int], KVKind]] = {
    FULL: lambda group, block_size, in_flight: FullKind(block_size),
    SLIDING: lambda group, block_size, in_flight: SlidingKind(block_size, group.window, in_flight),
    CHUNKED: lambda group, block_size, in_flight: ChunkedKind(block_size, group.window, in_flight),
    CROSS: lambda group, block_size, in_flight: CrossKind(block_size),
}


def kinds_of(layout: KVLayout, in_flight_tokens: int) -> tuple[KVKind, ...]:
    """By group. in_flight_tokens: most tokens of one request in steps that have not returned."""
    return tuple(KINDS[group.kind](group, layout.block_size, in_flight_tokens) for group in layout.groups)

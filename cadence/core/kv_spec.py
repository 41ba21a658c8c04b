"""How attention layers share one pool of KV blocks.

Layers of one kind form groups of equal size; layer j of every group uses the same storage (slot j), and a
block id belongs to one group at a time. So full and sliding layers draw blocks from one pool.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cadence.core.errors import ConfigError

KV_DTYPES = {"float32": 4, "bfloat16": 2, "float16": 2, "int8": 1}  # bytes of an entry
SCALE_BYTES = 4  # an int8 row is followed by the float32 its entries are multiples of


@dataclass(frozen=True, slots=True)
class LayerKV:
    """What one attention layer keeps per token."""

    num_kv_heads: int
    head_dim: int
    window: int = 0  # tokens a query sees, itself included; 0 = all


@dataclass(frozen=True, slots=True)
class KVGroup:
    window: int  # 0 = full attention
    layers: tuple[int, ...]  # slot j stores layer layers[j]


@dataclass(frozen=True, slots=True)
class KVLayout:
    block_size: int  # tokens per block
    num_kv_heads: int
    head_dim: int
    groups: tuple[KVGroup, ...]

    @property
    def num_slots(self) -> int:
        return max(len(group.layers) for group in self.groups)

    def row_width(self, dtype: str) -> int:
        """Entries of a row: the key or value of one token for one head. dtype: one of KV_DTYPES."""
        return self.head_dim + SCALE_BYTES if dtype == "int8" else self.head_dim

    def block_bytes(self, dtype: str) -> int:
        """Bytes one block occupies over all slots, keys and values together."""
        row_bytes = self.row_width(dtype) * KV_DTYPES[dtype]
        return 2 * self.num_slots * self.num_kv_heads * self.block_size * row_bytes

    def place(self, layer: int) -> tuple[int, int]:
        """(group, slot) of a layer."""
        for index, group in enumerate(self.groups):
            if layer in group.layers:
                return index, group.layers.index(layer)
        raise KeyError(layer)


def plan_layout(layers: Sequence[LayerKV], block_size: int) -> KVLayout:
    """Group layers by window, splitting larger kinds so that no group exceeds the smallest kind's size."""
    shapes = {(layer.num_kv_heads, layer.head_dim) for layer in layers}
    if len(shapes) != 1:
        raise ConfigError(f"attention layers of different KV shapes in one model: {sorted(shapes)}")
    by_window: dict[int, list[int]] = {}
    for index, layer in enumerate(layers):
        by_window.setdefault(layer.window, []).append(index)
    size = min(len(members) for members in by_window.values())
    groups = [
        KVGroup(window, tuple(members[start : start + size]))
        for window, members in sorted(by_window.items())
        for start in range(0, len(members), size)
    ]
    heads, dim = shapes.pop()
    return KVLayout(block_size, heads, dim, tuple(groups))

"""The KV storage: one tensor per slot, shared by one layer of every group."""

from __future__ import annotations

from cadence.core.kv_spec import KVLayout
from cadence.device.base import Device
from cadence.device.dtypes import DTYPES
from cadence.models.interface.model import LayerCache


def allocate_kv_cache(layout: KVLayout, num_blocks: int, dtype: str, device: Device) -> list[LayerCache]:
    """One LayerCache per attention layer; dtype: one of KV_DTYPES.

    Block 0 is the null block: padding writes there, nobody reads it.
    """
    shape = (2, num_blocks, layout.num_kv_heads, layout.block_size, layout.row_width(dtype))
    slots = [device.zeros(shape, DTYPES[dtype]) for _ in range(layout.num_slots)]
    num_layers = sum(len(group.layers) for group in layout.groups)
    caches = []
    for layer in range(num_layers):
        group, slot = layout.place(layer)
        caches.append(LayerCache(group, slots[slot][0], slots[slot][1]))
    return caches

"""The KV storage: one tensor per slot of the layout, of which each layer sees its own place."""

from __future__ import annotations

from cadence.core.kv_spec import KVLayout
from cadence.device.base import Device
from cadence.device.dtypes import DTYPES
from cadence.models.interface.model import LayerCache


def allocate_kv_cache(layout: KVLayout, num_blocks: int, device: Device) -> list[LayerCache]:
    """One LayerCache per attention layer, views of slots that groups share.

    Block 0 is the null block: padding writes there, nobody reads it.
    """
    size, dtype = layout.block_size, DTYPES[layout.dtype]
    slots = [device.zeros((2, num_blocks, room * size), dtype) for room in layout.slots]
    caches = []
    for layer, place in zip(layout.layers, layout.places, strict=True):
        start, count = place.start * size, layer.token_entries(layout.dtype) * size
        shape = (layer.num_kv_heads, size, layer.row_width(layout.dtype))
        k, v = slots[place.slot][:, :, start : start + count].unflatten(2, shape)
        caches.append(LayerCache(place.group, k, v))
    return caches

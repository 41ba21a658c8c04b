"""The memory of the KV cache: one tensor per slot of the layout, of which each layer sees its own places."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from cadence.core.model.kv_spec import CHUNKED, CROSS, FULL, SLIDING, KVLayout, LayerKV
from cadence.device.base import Device
from cadence.models.interface.model import LayerCache
from cadence.runner.caches.keys_values import keys_and_values

# By kind: what a layer gets of its parts, [num_blocks, bytes] uint8 each, which lie in slots that groups share.
VIEWS: dict[str, Callable[[LayerKV, KVLayout, int, Sequence[torch.Tensor]], LayerCache]] = {
    FULL: keys_and_values,
    SLIDING: keys_and_values,
    CHUNKED: keys_and_values,
    CROSS: keys_and_values,
}


def allocate_kv_cache(layout: KVLayout, num_blocks: int, device: Device) -> list[LayerCache]:
    """One per attention layer. Block 0 is the null block: padding writes there, and nothing of it is read."""
    slots = [device.zeros((num_blocks, size), torch.uint8) for size in layout.slots]
    caches = []
    for layer, place in zip(layout.layers, layout.places, strict=True):
        sizes = layer.part_bytes(layout.block_size, layout.dtype)
        parts = [slots[slot][:, at : at + size] for (slot, at), size in zip(place.parts, sizes, strict=True)]
        caches.append(VIEWS[layer.kind](layer, layout, place.group, parts))
    return caches

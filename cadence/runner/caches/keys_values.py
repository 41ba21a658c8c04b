"""Keys and values of every token, in tensors of one shape: full, sliding and cross attention."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from cadence.core.model.kv_spec import KVLayout, LayerKV
from cadence.device.dtypes import DTYPES
from cadence.models.interface.model import LayerCache


def keys_and_values(layer: LayerKV, layout: KVLayout, group: int, parts: Sequence[torch.Tensor]) -> LayerCache:
    """parts: keys and values, [num_blocks, bytes] uint8 each"""
    shape = (layer.num_kv_heads, layout.block_size, layer.row_width(layout.dtype))
    k, v = (part.view(DTYPES[layout.dtype]).unflatten(1, shape) for part in parts)
    return LayerCache(group, k, v)

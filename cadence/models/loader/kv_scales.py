"""Scales of a float8 KV cache, which some checkpoints carry: a number for the keys, one for the values of a layer."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence

import torch
from torch import nn

from cadence.models.layers.attention import Attention
from cadence.models.loader.source import KVScales

_NAME = re.compile(r"(?:^|\.)(layers\.\d+)\.self_attn\.(?:(?:k_proj|v_proj|attn)\.)?([kv])_scale")


def read_kv_scales(names: Sequence[str], load: Callable[[str], torch.Tensor]) -> KVScales:
    """Of layers that have both, of one positive number each."""
    found: dict[str, dict[str, float]] = {}
    for name in names:
        if match := _NAME.search(name):
            value = load(name)
            if value.numel() == 1:
                found.setdefault(match[1], {})[match[2]] = float(value)
    usable = {layer: both for layer, both in found.items() if len(both) == 2 and all(map(_is_scale, both.values()))}
    return {layer: (both["k"], both["v"]) for layer, both in usable.items()}


def _is_scale(value: float) -> bool:
    return 0.0 < value < math.inf


def hold_kv_scales(model: nn.Module, scales: KVScales) -> None:
    """Layers that are elsewhere have theirs there."""
    for path, module in model.named_modules():
        if isinstance(module, Attention) and (own := scales.get(path.rpartition(".")[0])):
            module.hold_kv_scales(*own)

"""Rotary position embedding from one table of cosines and sines, shared by all layers with equal settings."""

from __future__ import annotations

import torch
from torch import nn

from cadence.models.build import BuildContext
from cadence.models.layers.rope_config import RopeConfig
from cadence.models.layers.rope_frequencies import frequencies


class Rotary(nn.Module):
    """Rotates q [T, Hq, D] and k [T, Hk, D] in place by positions [T]."""

    cos_sin: torch.Tensor  # [max_model_len, rotary_dim] float32: cosines, then sines

    def __init__(self, build: BuildContext, rope: RopeConfig) -> None:
        super().__init__()
        inv_freq, magnitude = frequencies(rope, build.max_model_len)
        angles = torch.arange(build.max_model_len).float()[:, None] * inv_freq
        table = torch.cat((angles.cos() * magnitude, angles.sin() * magnitude), dim=1)
        self.register_buffer("cos_sin", table.to(build.device), persistent=False)
        self._ops = build.ops

    def forward(self, q: torch.Tensor, k: torch.Tensor, positions: torch.Tensor) -> None:
        self._ops.rope(q, k, positions, self.cos_sin)


class NoRotary(nn.Module):
    """For families whose positions are learned vectors."""

    def forward(self, q: torch.Tensor, k: torch.Tensor, positions: torch.Tensor) -> None:
        return None

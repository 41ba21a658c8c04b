"""The place of a model's tower: what sees or hears, and hands vectors to the first layer."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from cadence.kernels.interface.ops import Ops
from cadence.models.interface.media import MediaContent


class Tower(nn.Module):
    """Implements `MediaTower`."""

    reads: frozenset[str] = frozenset()
    both_ways = False
    rope_axes = 1

    def encode(self, contents: Sequence[MediaContent], ops: Ops) -> torch.Tensor:
        raise NotImplementedError

    def largest(self, length: int) -> MediaContent:
        raise NotImplementedError


class NoTower(Tower):
    """Of a model that takes text alone."""

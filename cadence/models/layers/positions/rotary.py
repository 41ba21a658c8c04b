"""How positions enter attention: by rotation, from one table shared by all layers with equal settings, or not here."""

from __future__ import annotations

import torch
from torch import nn

from cadence.kernels.interface.ops import Rotation
from cadence.kernels.interface.rope_ops import NO_AXES, AxesTable
from cadence.models.interface.build import BuildContext
from cadence.models.layers.positions.rope_config import RopeConfig
from cadence.models.layers.positions.rope_frequencies import frequencies


class Rotary(nn.Module):
    """Rotates q [T, Hq, D] and k [T, Hk, D] by positions [T], after the norm of each head where a layer has one."""

    cos_sin: torch.Tensor  # [max_model_len, rotary_dim] float32: cosines, then sines
    axis_of: torch.Tensor  # as `AxesTable` has it

    def __init__(self, build: BuildContext, rope: RopeConfig, *, neighbours: bool = False) -> None:
        """neighbours: entries that turn together lie side by side in a checkpoint"""
        super().__init__()
        self.neighbours = rope.rotary_dim if neighbours else 0  # of a head, those entries
        inv_freq, magnitude = frequencies(rope, build.max_model_len)
        angles = torch.arange(build.max_model_len).float()[:, None] * inv_freq
        table = torch.cat((angles.cos() * magnitude, angles.sin() * magnitude), dim=1)
        self.register_buffer("cos_sin", table.to(build.device), persistent=False)
        axis_of = torch.tensor(rope.axis_of, dtype=torch.int32, device=build.device)
        self.register_buffer("axis_of", axis_of, persistent=False)

    @property
    def axes(self) -> AxesTable:
        return AxesTable(self.cos_sin, self.axis_of)

    def rotation(self, norms: tuple[torch.Tensor, ...], eps: float) -> Rotation:
        """What a layer with these weights of head norms does."""
        return Rotation(self.cos_sin, norms, eps)


class NoRotary(nn.Module):
    """For families whose positions are learned vectors."""

    axes = NO_AXES
    neighbours = 0

    def rotation(self, norms: tuple[torch.Tensor, ...], eps: float) -> Rotation:
        return Rotation(torch.empty((0, 0)), norms, eps)

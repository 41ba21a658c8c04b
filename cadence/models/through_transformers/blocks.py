"""Blocks of ours in the places of modules that `recognise` has found to compute the same, called as those are."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from cadence.kernels.interface.attention_batch import AttentionShape
from cadence.kernels.interface.ops import Rotation
from cadence.kernels.interface.rope_ops import NO_AXES
from cadence.models.interface.build import BuildContext
from cadence.models.layers.attention import Attention, AttentionSpec, HeadNorms
from cadence.models.layers.mlp import GatedMLP
from cadence.models.layers.norm import RMSNorm
from cadence.models.layers.positions.rotary import NoRotary
from cadence.models.through_transformers.current import CurrentForward, as_rows
from cadence.models.through_transformers.norm import RMS_PLUS_1, FoundNorm
from cadence.models.through_transformers.recognise import FoundAttention, FoundMLP, Turning


class TabledRotary(nn.Module):
    """As `Rotary`, with a table that a module of transformers gave."""

    axes = NO_AXES
    cos_sin: torch.Tensor  # as `Rotation` has it

    def __init__(self, build: BuildContext, turning: Turning, *, neighbours: bool) -> None:
        super().__init__()
        self.neighbours = 2 * turning.cos.shape[1] if neighbours else 0
        self.register_buffer("cos_sin", _table(turning, build.max_model_len).to(build.device), persistent=False)

    def rotation(self, norms: tuple[torch.Tensor, ...], eps: float) -> Rotation:
        return Rotation(self.cos_sin, norms, eps)


@torch.no_grad()
def _table(turning: Turning, max_len: int) -> torch.Tensor:
    """[max_len, dim]: of all positions, on the host and in float32"""
    named = {name: value for name, value in turning.kwargs.items() if not isinstance(value, torch.Tensor)}
    positions = torch.arange(max_len)[None]
    others = [value for value in turning.args if not isinstance(value, torch.Tensor)]
    given = {"position_ids": positions} if "position_ids" in turning.kwargs else {}
    args = (torch.zeros(1), *(() if given else (positions,)), *others)
    cos, sin = turning.module(*args, **given, **named)
    half = turning.cos.shape[1]
    own = slice(0, None, 2) if turning.repeats else slice(0, half)
    return torch.cat((cos[0, :, own], sin[0, :, own]), dim=1).float()


class NoTurning(nn.Module):
    """In the place of a module that gave cosines and sines, where all that used them have tables."""

    def forward(self, *_: Any, **__: Any) -> tuple[None, None]:
        return None, None


class CalledAttention(nn.Module):
    """hidden [1, T, H] -> ([1, T, H], None, ...)"""

    def __init__(self, block: Attention, found: FoundAttention, now: CurrentForward) -> None:
        super().__init__()
        self.block = block
        self.now = now
        self._keyword = found.keyword
        self._rest = (None,) * (found.results - 1)
        self._alone = not found.results
        _keep_settings(self, found.module)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        x = kwargs[self._keyword] if self._keyword else args[0]
        made = self.block(as_rows(x), self.now.inputs, self.now.ctx).view(x.shape)
        return made if self._alone else (made, *self._rest)


class CalledMLP(nn.Module):
    """x [..., H] -> [..., H]"""

    def __init__(self, block: GatedMLP, found: FoundMLP, now: CurrentForward) -> None:
        super().__init__()
        self.block = block
        self.now = now
        _keep_settings(self, found.module)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.block(as_rows(x), self.now.ctx).view(x.shape)


def _keep_settings(ours: nn.Module, theirs: nn.Module) -> None:
    """What the code around reads of a module: whether its window slides, and the like."""
    for name, value in vars(theirs).items():
        if not name.startswith("_") and name not in vars(ours) and isinstance(value, bool | int | float | str):
            setattr(ours, name, value)


def attention_block(
    build: BuildContext, index: int, found: FoundAttention, shape: AttentionShape, rotary: TabledRotary | NoRotary
) -> Attention:
    first = found.projections[0]
    spec = AttentionSpec(
        hidden=first.in_features,
        shape=shape,
        qkv_bias=first.bias is not None,
        out_bias=found.out.bias is not None,
        grouped=found.grouped,
    )
    norms = [_norm(build, norm) for _, norm in found.norms]
    return Attention(build, index, spec, rotary, HeadNorms(q=norms[0], k=norms[1]) if norms else None)


def _norm(build: BuildContext, found: FoundNorm) -> RMSNorm:
    return RMSNorm(build, found.size, found.eps, wide=found.kind == RMS_PLUS_1)


def mlp_block(build: BuildContext, found: FoundMLP) -> GatedMLP:
    down = found.down
    return GatedMLP(build, down.out_features, down.in_features, found.activation, bias=down.bias is not None)

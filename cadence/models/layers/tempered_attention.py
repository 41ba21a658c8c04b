"""Attention whose queries grow with their positions, so that it does not blur over long texts."""

from __future__ import annotations

import torch
from torch import nn

from cadence.kernels.interface.ops import Triple
from cadence.models.interface.build import BuildContext
from cadence.models.interface.model import ForwardContext, ModelInputs
from cadence.models.layers.attention import Attention, AttentionSpec
from cadence.models.layers.positions.rotary import NoRotary


class Temperatures(nn.Module):
    """What queries are multiplied by: 1 + grows * log(1 + spans), of as many whole spans as end with the query. One
    table, shared by all layers."""

    factors: torch.Tensor  # [max_model_len] float32

    def __init__(self, build: BuildContext, span: float, grows: float) -> None:
        """span: tokens"""
        super().__init__()
        spans = torch.floor((torch.arange(build.max_model_len).float() + 1.0) / span)
        self.register_buffer("factors", (torch.log1p(spans) * grows + 1.0).to(build.device), persistent=False)


class TemperedAttention(Attention):
    """Without rotation."""

    def __init__(self, build: BuildContext, layer: int, spec: AttentionSpec, temperatures: Temperatures) -> None:
        super().__init__(build, layer, spec, NoRotary())
        self.temperatures = temperatures

    def heads(self, projected: torch.Tensor, inputs: ModelInputs, ctx: ForwardContext) -> Triple:
        q, k, v = super().heads(projected, inputs, ctx)
        wide = q.view(q.shape[0], -1)  # [T, Hq * D], strided
        return ctx.ops.scale_rows(wide, self.temperatures.factors, inputs.rope_positions).view(q.shape), k, v

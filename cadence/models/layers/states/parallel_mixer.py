"""Attention and a mixer with a state side by side: both read the same, what they give is added."""

from __future__ import annotations

import torch

from cadence.core.model.kv_spec import LayerKV
from cadence.core.model.state_spec import LayerState
from cadence.kernels.interface.rope_ops import AxesTable
from cadence.models.interface.model import ForwardContext, ModelInputs
from cadence.models.layers.attention import Attention
from cadence.models.layers.mixer import Mixer
from cadence.models.layers.norm import Norm
from cadence.models.layers.states.mamba2 import Mamba2
from cadence.models.layers.weight import Stream


class ParallelMixer(Mixer):
    before_narrowing = ("attention.qkv", "mamba.in_proj")

    def __init__(self, attention: Attention, mamba: Mamba2) -> None:
        super().__init__()
        self.attention, self.mamba = attention, mamba
        self.place = attention.place

    @property
    def kv(self) -> LayerKV:
        return self.attention.kv

    @property
    def state(self) -> LayerState:
        return self.mamba.state

    @property
    def axes(self) -> AxesTable:
        return self.attention.axes

    @property
    def width(self) -> int:
        return self.attention.width

    def narrow(self) -> None:
        super().narrow()
        self.attention.narrow()
        self.mamba.narrow()

    def place_state(self, place: int) -> None:
        self.mamba.place_state(place)

    def forward(self, x: torch.Tensor, inputs: ModelInputs, ctx: ForwardContext) -> torch.Tensor:
        return ctx.ops.add(self.attention(x, inputs, ctx), self.mamba(x, inputs, ctx))

    def after(
        self,
        norm: Norm,
        x: torch.Tensor,
        residual: torch.Tensor,
        inputs: ModelInputs,
        ctx: ForwardContext,
        *,
        terms: bool = False,
    ) -> Stream:
        """Never in terms: what comes out is one sum."""
        normed, residual = norm.add(x, residual, ctx)
        return self(normed, inputs, ctx), self.kept(residual, ctx)

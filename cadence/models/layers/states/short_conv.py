"""A short convolution between two gates, all the state of which are its last inputs."""

from __future__ import annotations

import torch

from cadence.core.model.state_spec import LayerState
from cadence.models.interface.build import BuildContext
from cadence.models.interface.model import ForwardContext, ModelInputs
from cadence.models.layers.linear import Linear
from cadence.models.layers.mixer import Mixer
from cadence.models.layers.rank_share import Held, inner_part
from cadence.models.layers.states.state_parts import ShortConv


class GatedShortConv(Mixer):
    """out_proj(c * conv(b * x)), where (b, c, x) = in_proj(input)."""

    before_narrowing = ("in_proj",)

    def __init__(self, build: BuildContext, hidden: int, taps: int, *, bias: bool) -> None:
        super().__init__()
        own, every = (hidden, inner_part(hidden, build.ranks)), (hidden, range(hidden))
        self.in_proj = Linear.shared(build, Held({"b": own, "c": own, "x": own}, every), bias=bias)
        self.conv = ShortConv(build, {"": own}, taps, bias=bias, silu=False)
        self.out_proj = Linear.shared(build, Held({"": every}, own), bias=bias)

    @property
    def inner(self) -> Linear:
        return self.in_proj

    @property
    def outer(self) -> Linear:
        return self.out_proj

    @property
    def state(self) -> LayerState:
        return LayerState(conv=self.conv.shape)

    def mix(self, projected: torch.Tensor, inputs: ModelInputs, ctx: ForwardContext) -> torch.Tensor:
        going_on, gate = self.going_on(ctx), ctx.ops.states.gate
        b, c, x = projected.chunk(3, dim=1)
        convolved = self.conv(gate(x, b, silu=False), self.tables(ctx).inputs, ctx.states.runs, ctx)
        return gate(going_on.pick(convolved, ctx.ops), going_on.pick(c, ctx.ops), silu=False)

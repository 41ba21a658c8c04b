"""Mamba: channels with a vector as their state, of which every entry fades by itself, as each token says."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum

import torch

from cadence.core.model.state_spec import LayerState
from cadence.kernels.interface.state_ops import Scan
from cadence.models.interface.build import BuildContext, ConfigView
from cadence.models.interface.model import ForwardContext, ModelInputs
from cadence.models.layers.linear import Linear
from cadence.models.layers.mixer import Mixer
from cadence.models.layers.norm import NoNorm, RMSNorm, UnscaledNorm
from cadence.models.layers.rank_share import Held, inner_part
from cadence.models.layers.states.state_parts import Decay, OfChannels, ShortConv


class InnerNorms(Enum):
    """RMS norms over what a token says of the time step, and over b and c."""

    NONE = "none"
    UNSCALED = "unscaled"
    SCALED = "scaled"


@dataclass(frozen=True, slots=True)
class MambaSpec:
    hidden: int
    width: int  # channels
    states: int  # entries of each channel
    rank: int  # entries of what a token says of the time step
    taps: int  # of the short convolution
    norms: InnerNorms = InnerNorms.NONE
    eps: float = 0.0  # of these
    bias: bool = False  # of both projections
    conv_bias: bool = True


def time_step_rank(hf: ConfigView, field: str) -> int:
    """A number, or "auto", which is so many for its hidden size."""
    rank = hf.get(field, "auto")
    return math.ceil(hf["hidden_size"] / 16) if rank == "auto" else int(rank)


class Mamba(Mixer):
    before_narrowing = ("in_proj", "x_proj", "dt_proj")

    def __init__(self, build: BuildContext, spec: MambaSpec) -> None:
        super().__init__()
        own, every = (spec.width, inner_part(spec.width, build.ranks)), (spec.hidden, range(spec.hidden))
        self._sizes = (spec.rank, spec.states, spec.states)
        of_token = sum(self._sizes)
        self.in_proj = Linear.shared(build, Held({"x": own, "gate": own}, every), bias=spec.bias)
        self.conv = ShortConv(build, {"": own}, spec.taps, bias=spec.conv_bias, silu=True)
        self.x_proj = Linear.shared(build, Held({"": (of_token, range(of_token))}, own))
        self.dt_proj = Linear.shared(build, Held({"": own}, (spec.rank, range(spec.rank))))
        self.dt_norm, self.b_norm, self.c_norm = (_norm(build, spec, size) for size in self._sizes)
        self.decay = Decay(build, own, spec.states)
        self.skip = OfChannels(build, own)
        self.out_proj = Linear.shared(build, Held({"": every}, own), bias=spec.bias)
        self._width, self._states = len(own[1]), spec.states
        self._scan = Scan(self.decay.a, self.skip.weight, self.decay.dt_bias.weight)

    @property
    def inner(self) -> Linear:
        return self.in_proj

    @property
    def outer(self) -> Linear:
        return self.out_proj

    @property
    def state(self) -> LayerState:
        shape = (self._states, self._width)
        return LayerState(conv=self.conv.shape, state=shape, kept=2 * self._width + self._states)

    def mix(self, projected: torch.Tensor, inputs: ModelInputs, ctx: ForwardContext) -> torch.Tensor:
        tables, runs, going_on = self.tables(ctx), ctx.states.runs, self.going_on(ctx)
        x, gate = projected.chunk(2, dim=1)
        x = self.conv(x, tables.inputs, runs, ctx)
        dt, b, c = self.x_proj(x, ctx).unsqueeze(1).split(self._sizes, dim=2)
        dt = self.dt_proj(self.dt_norm(dt, ctx).squeeze(1), ctx)
        b, c = self.b_norm(b, ctx).squeeze(1), self.c_norm(c, ctx).squeeze(1)
        scanned = ctx.ops.states.scan(x, dt, b, c, self._scan, tables.table, runs)
        return ctx.ops.states.gate(going_on.pick(scanned, ctx.ops), going_on.pick(gate, ctx.ops), silu=True)


def _norm(build: BuildContext, spec: MambaSpec, size: int) -> RMSNorm | UnscaledNorm | NoNorm:
    if spec.norms is InnerNorms.SCALED:
        return RMSNorm(build, size, spec.eps)
    return UnscaledNorm(build, size, spec.eps) if spec.norms is InnerNorms.UNSCALED else NoNorm()

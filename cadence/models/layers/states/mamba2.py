"""Mamba-2: heads with a matrix as their state, all of which a number for each token and head lets fade."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from cadence.core.errors import ConfigError
from cadence.core.model.state_spec import LayerState
from cadence.kernels.interface.state_ops import HeadScan
from cadence.models.interface.build import BuildContext
from cadence.models.interface.model import ForwardContext, ModelInputs
from cadence.models.layers.linear import Linear
from cadence.models.layers.mixer import Mixer
from cadence.models.layers.rank_share import Held, grouped_heads, times
from cadence.models.layers.states.state_parts import Decay, GatedNorm, NoGatedNorm, OfChannels, ShortConv


@dataclass(frozen=True, slots=True)
class Mamba2Spec:
    hidden: int
    heads: int
    head_dim: int
    groups: int  # of heads that have b and c in common
    states: int  # entries of b and c
    taps: int  # of the short convolution
    norm_group: int  # entries that are normed together; 0 = there is no norm
    eps: float
    norm_first: bool = False  # before the gate
    bias: bool = False  # of the first projection
    out_bias: bool = False
    conv_bias: bool = True
    dt_limit: tuple[float, float] = (0.0, float("inf"))

    def __post_init__(self) -> None:
        if self.heads % self.groups:
            message = f"{self.heads} heads of Mamba-2 cannot be divided into {self.groups} groups"
            raise ConfigError(message, "n_groups")

    @property
    def width(self) -> int:
        return self.heads * self.head_dim


class Mamba2(Mixer):
    before_narrowing = ("in_proj",)

    def __init__(self, build: BuildContext, spec: Mamba2Spec) -> None:
        super().__init__()
        heads, groups = grouped_heads(spec.heads, spec.groups, build.ranks)
        entries, every = times(heads, spec.head_dim), (spec.hidden, range(spec.hidden))
        shared = times(groups, spec.states)
        channels = {"x": entries, "b": shared, "c": shared}
        self.in_proj = Linear.shared(build, Held({"gate": entries, **channels, "dt": heads}, every), bias=spec.bias)
        self.conv = ShortConv(build, channels, spec.taps, bias=spec.conv_bias, silu=True)
        self.decay = Decay(build, heads)
        self.skip = OfChannels(build, heads)
        self.norm = _norm(build, spec, entries)
        self.out_proj = Linear.shared(build, Held({"": every}, entries), bias=spec.out_bias)
        self._heads, self._groups = (len(heads[1]), spec.head_dim), (len(groups[1]), spec.states)
        self._scan = HeadScan(self.decay.a, self.skip.weight, self.decay.dt_bias.weight, spec.dt_limit)

    @property
    def inner(self) -> Linear:
        return self.in_proj

    @property
    def outer(self) -> Linear:
        return self.out_proj

    @property
    def state(self) -> LayerState:
        (heads, entries), (groups, states) = self._heads, self._groups
        kept = heads * entries + heads + groups * states
        return LayerState(conv=self.conv.shape, state=(heads, states, entries), kept=kept)

    def mix(self, projected: torch.Tensor, inputs: ModelInputs, ctx: ForwardContext) -> torch.Tensor:
        tables, runs, going_on = self.tables(ctx), ctx.states.runs, self.going_on(ctx)
        heads, width = self._heads[0], self._heads[0] * self._heads[1]
        gate, convolved, dt = projected.split((width, self.conv.shape[0], heads), dim=1)
        convolved = self.conv(convolved, tables.inputs, runs, ctx)
        shared = (convolved.shape[1] - width) // 2
        x, b, c = convolved.split((width, shared, shared), dim=1)
        x, b, c = x.unflatten(1, self._heads), b.unflatten(1, self._groups), c.unflatten(1, self._groups)
        scanned = ctx.ops.states.head_scan(x, dt, b, c, self._scan, tables.table, runs)
        scanned = scanned.view(scanned.shape[0], width)
        return self.norm(going_on.pick(scanned, ctx.ops), going_on.pick(gate, ctx.ops), ctx)


def _norm(build: BuildContext, spec: Mamba2Spec, own: tuple[int, range]) -> GatedNorm | NoGatedNorm:
    if not spec.norm_group:
        return NoGatedNorm()
    return GatedNorm(build, own, spec.norm_group, spec.eps, norm_first=spec.norm_first)

"""A gated delta net: heads with a matrix as their state, which forgets what it had for a key before it learns another
value for it."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from cadence.core.errors import ConfigError
from cadence.core.model.state_spec import LayerState
from cadence.kernels.interface.state_ops import DeltaRule
from cadence.models.interface.build import BuildContext
from cadence.models.interface.model import ForwardContext, ModelInputs
from cadence.models.layers.linear import Linear
from cadence.models.layers.mixer import Mixer
from cadence.models.layers.rank_share import Held, Picked, Share, grouped_heads, times
from cadence.models.layers.states.state_parts import Decay, GatedNorm, ShortConv


@dataclass(frozen=True, slots=True)
class GatedDeltaSpec:
    hidden: int
    key_heads: int
    value_heads: int
    key_dim: int  # of a head
    value_dim: int
    taps: int  # of the short convolution
    eps: float

    def __post_init__(self) -> None:
        if self.value_heads % self.key_heads:
            message = f"{self.value_heads} heads of values cannot share {self.key_heads} heads of keys"
            raise ConfigError(message, "linear_num_value_heads")


class GatedDelta(Mixer):
    """Projects to q, k, v, a gate z, beta (b) and decay (a). A checkpoint has parts `q+k+v+z` and `b+a` of one key head
    after the other."""

    before_narrowing = ("in_proj",)

    def __init__(self, build: BuildContext, spec: GatedDeltaSpec) -> None:
        super().__init__()
        values, keys = grouped_heads(spec.value_heads, spec.key_heads, build.ranks)
        of_keys, of_values = times(keys, spec.key_dim), times(values, spec.value_dim)
        every = (spec.hidden, range(spec.hidden))
        self.in_proj = Linear.shared(build, _held(spec, keys, values))
        self.conv = ShortConv(build, {"q": of_keys, "k": of_keys, "v": of_values}, spec.taps, bias=False, silu=True)
        self.decay = Decay(build, values)
        self.norm = GatedNorm(build, of_values, spec.value_dim, spec.eps, norm_first=True, one_weight=True)
        self.out_proj = Linear.shared(build, Held({"": every}, of_values))
        self._keys, self._values = (len(keys[1]), spec.key_dim), (len(values[1]), spec.value_dim)
        self._rule = DeltaRule(self.decay.a, self.decay.dt_bias.weight)

    @property
    def inner(self) -> Linear:
        return self.in_proj

    @property
    def outer(self) -> Linear:
        return self.out_proj

    @property
    def state(self) -> LayerState:
        (key_heads, key_dim), (heads, dim) = self._keys, self._values
        kept = key_heads * key_dim + heads * dim + 2 * heads
        return LayerState(conv=self.conv.shape, state=(heads, key_dim, dim), kept=kept)

    def mix(self, projected: torch.Tensor, inputs: ModelInputs, ctx: ForwardContext) -> torch.Tensor:
        tables, runs, going_on = self.tables(ctx), ctx.states.runs, self.going_on(ctx)
        heads, width, of_keys = self._values[0], self._values[0] * self._values[1], self._keys[0] * self._keys[1]
        convolved, z, beta, decay = projected.split((self.conv.shape[0], width, heads, heads), dim=1)
        q, k, v = self.conv(convolved, tables.inputs, runs, ctx).split((of_keys, of_keys, width), dim=1)
        qkv = q.unflatten(1, self._keys), k.unflatten(1, self._keys), v.unflatten(1, self._values)
        read = ctx.ops.states.delta_rule(qkv, decay, beta, self._rule, tables.table, runs)
        read = read.view(read.shape[0], width)
        return self.norm(going_on.pick(read, ctx.ops), going_on.pick(z, ctx.ops), ctx)


def _held(spec: GatedDeltaSpec, keys: Share, values: Share) -> Held:
    of_keys, of_values = times(keys, spec.key_dim), times(values, spec.value_dim)
    rows = {"q": of_keys, "k": of_keys, "v": of_values, "z": of_values, "b": values, "a": values}
    picked = {
        "q+k+v+z": _by_key_head(spec, keys, values, (spec.key_dim,) * 2, (spec.value_dim,) * 2),
        "b+a": _by_key_head(spec, keys, values, (), (1, 1)),
    }
    return Held(rows, (spec.hidden, range(spec.hidden)), picked)


def _by_key_head(
    spec: GatedDeltaSpec, keys: Share, values: Share, key_parts: tuple[int, ...], value_parts: tuple[int, ...]
) -> Picked:
    """Of rows that a checkpoint has key head by key head: entries of the head in `key_parts`, then, of each of
    `value_parts`, those of all heads of values that share it."""
    shared = spec.value_heads // spec.key_heads
    size, at = sum(key_parts) + shared * sum(value_parts), 0
    firsts: list[tuple[int, int]] = []
    for dim in key_parts:
        firsts += [(size * head + at, dim) for head in keys[1]]
        at += dim
    for dim in value_parts:
        firsts += [(size * (head // shared) + at + dim * (head % shared), dim) for head in values[1]]
        at += shared * dim
    return size * spec.key_heads, tuple(range(first, first + dim) for first, dim in firsts)

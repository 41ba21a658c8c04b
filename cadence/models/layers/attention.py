"""The attention block: one fused projection, optional norms on queries and keys, rotation, the paged cache."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from cadence.core.model.kv_spec import LayerKV
from cadence.kernels.interface.attention_batch import AttentionShape
from cadence.kernels.interface.ops import Triple
from cadence.kernels.interface.rope_ops import AxesTable
from cadence.models.interface.build import BuildContext
from cadence.models.interface.model import ForwardContext, ModelInputs
from cadence.models.layers.head_rows import picked_heads
from cadence.models.layers.linear import Linear
from cadence.models.layers.mixer import Mixer
from cadence.models.layers.norm import RMSNorm, UnscaledNorm
from cadence.models.layers.positions.rotary import NoRotary, Rotary
from cadence.models.layers.rank_share import HeadShare, Held


@dataclass(frozen=True, slots=True)
class AttentionSpec:
    hidden: int
    shape: AttentionShape
    qkv_bias: bool = False
    out_bias: bool = False
    grouped: bool = False  # a checkpoint has queries, keys and values in one matrix, head by head


@dataclass(frozen=True, slots=True)
class HeadNorms:
    """Norms applied to each head of the queries and of the keys, before rotation."""

    q: RMSNorm | UnscaledNorm
    k: RMSNorm | UnscaledNorm  # with the eps of q


class Attention(Mixer):
    """`layer` is its index in the cache."""

    before_narrowing = ("qkv",)

    def __init__(
        self,
        build: BuildContext,
        layer: int,
        spec: AttentionSpec,
        rotary: Rotary | NoRotary,
        norms: HeadNorms | None = None,
    ) -> None:
        super().__init__()
        share, every = HeadShare.of(spec.shape, build.ranks), (spec.hidden, range(spec.hidden))
        shape, queries = share.shape, share.queries_of_dim
        self.rotary = rotary
        self.qkv = self.projection(build, spec, share)
        self.out = Linear.shared(build, Held({"": every}, queries), bias=spec.out_bias)
        if norms is None:
            self._rotation = rotary.rotation((), 0.0)
        else:
            self.q_norm, self.k_norm = norms.q, norms.k
            self._rotation = rotary.rotation((norms.q.weight, norms.k.weight), norms.q.eps)
        self.shape = shape
        self.place = layer
        self._heads = (shape.num_heads, shape.num_kv_heads, shape.num_kv_heads)

    def projection(self, build: BuildContext, spec: AttentionSpec, share: HeadShare) -> Linear:
        """For a family that projects to more."""
        queries, keys = share.queries_of_dim, share.keys_of_dim
        held = Held({"q": queries, "k": keys, "v": keys}, (spec.hidden, range(spec.hidden)))
        picked = picked_heads(held, spec.shape, self.rotary.neighbours, grouped=spec.grouped)
        return Linear.shared(build, replace(held, picked=picked), bias=spec.qkv_bias)

    def hold_kv_scales(self, k: float, v: float) -> None:
        """What the checkpoint says that keys and values of a float8 cache are multiples of."""
        self._rotation = replace(self._rotation, kv_scales=(k, v))

    @property
    def kv_scales(self) -> tuple[float, float]:
        return self._rotation.kv_scales

    @property
    def kv(self) -> LayerKV:
        shape = self.shape
        return LayerKV(shape.num_kv_heads, shape.head_dim, shape.window, chunk=shape.chunk)

    @property
    def axes(self) -> AxesTable:
        return self.rotary.axes

    @property
    def inner(self) -> Linear:
        return self.qkv

    @property
    def outer(self) -> Linear:
        return self.out

    def mix(self, projected: torch.Tensor, inputs: ModelInputs, ctx: ForwardContext) -> torch.Tensor:
        """projected [T, q + k + v] -> [T, Hq * D], before the last projection."""
        qkv, going_on = self.heads(projected, inputs, ctx), self.going_on(ctx)
        attended = ctx.attend(self.place, self.shape, qkv, inputs.rope_positions, self._rotation, going_on)
        return attended.view(attended.shape[0], -1)

    def heads(self, projected: torch.Tensor, inputs: ModelInputs, ctx: ForwardContext) -> Triple:
        """projected [T, q + k + v] -> q [T, Hq, D], k and v [T, Hk, D]. For a family that changes them here: a norm
        over all heads at once."""
        q, k, v = projected.view(projected.shape[0], -1, self.shape.head_dim).split(self._heads, dim=1)
        return q, k, v

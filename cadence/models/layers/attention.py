"""The attention block: one fused projection, optional norms on queries and keys, rotation, the paged cache.

`block(x, inputs, ctx)`, or `block.after(norm, x, residual, inputs, ctx)`: of norm(x + residual), with that sum.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import nn

from cadence.core.kv_spec import LayerKV
from cadence.kernels.interface.attention_batch import AttentionShape
from cadence.kernels.interface.ops import Triple
from cadence.models.interface.build import BuildContext
from cadence.models.interface.model import ForwardContext, ModelInputs
from cadence.models.interface.wanted import EVERY_TOKEN, Wanted
from cadence.models.layers.head_rows import head_orders
from cadence.models.layers.linear import Linear
from cadence.models.layers.norm import Norm, RMSNorm
from cadence.models.layers.rank_share import HeadShare, Held
from cadence.models.layers.rotary import NoRotary, Rotary
from cadence.models.layers.weight import Stream


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

    q: RMSNorm
    k: RMSNorm  # with the eps of q


class Attention(nn.Module):
    """x [T, hidden] -> [T, hidden]; `layer` is its index in the cache."""

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
        shape, queries, keys = share.shape, share.queries_of_dim, share.keys_of_dim
        orders = head_orders(spec.shape, rotary.neighbours, grouped=spec.grouped)
        held = Held({"q": queries, "k": keys, "v": keys}, every, orders)
        self.qkv = Linear.shared(build, held, bias=spec.qkv_bias)
        self.out = Linear.shared(build, Held({"": every}, queries), bias=spec.out_bias)
        self.rotary = rotary
        if norms is None:
            self._rotation = rotary.rotation((), 0.0)
        else:
            self.q_norm, self.k_norm = norms.q, norms.k
            self._rotation = rotary.rotation((norms.q.weight, norms.k.weight), norms.q.eps)
        self.shape = shape
        self._layer = layer
        self._heads = (shape.num_heads, shape.num_kv_heads, shape.num_kv_heads)
        self.narrows = False  # after its keys only the wanted tokens go on: set by the model whose last block it is

    def hold_kv_scales(self, k: float, v: float) -> None:
        """What the checkpoint says that keys and values of a float8 cache are multiples of."""
        self._rotation = replace(self._rotation, kv_scales=(k, v))

    @property
    def kv(self) -> LayerKV:
        return LayerKV(self.shape.num_kv_heads, self.shape.head_dim, self.shape.window)

    def forward(self, x: torch.Tensor, inputs: ModelInputs, ctx: ForwardContext) -> torch.Tensor:
        return self.out(self.attend(self.qkv(x, ctx), inputs, ctx), ctx)

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
        """terms: as `Linear` has it, of what comes out."""
        qkv, residual = norm.add_linear(x, residual, self.qkv, ctx)
        return self.out(self.attend(qkv, inputs, ctx), ctx, terms=terms), self.kept(residual, ctx)

    def kept(self, x: torch.Tensor, ctx: ForwardContext) -> torch.Tensor:
        """x [T, hidden] as it goes on beside this block: of the tokens that the block's output is of."""
        return self._going_on(ctx).pick(x, ctx.ops)

    def attend(self, projected: torch.Tensor, inputs: ModelInputs, ctx: ForwardContext) -> torch.Tensor:
        """projected [T, q + k + v] -> [T, Hq * D], before the last projection."""
        qkv, going_on = self.heads(projected, ctx), self._going_on(ctx)
        attended = ctx.attend(self._layer, self.shape, qkv, inputs.rope_positions, self._rotation, going_on)
        return attended.view(attended.shape[0], -1)

    def heads(self, projected: torch.Tensor, ctx: ForwardContext) -> Triple:
        """projected [T, q + k + v] -> q [T, Hq, D], k and v [T, Hk, D]. For a family that changes them here: a norm
        over all heads at once."""
        q, k, v = projected.view(projected.shape[0], -1, self.shape.head_dim).split(self._heads, dim=1)
        return q, k, v

    def _going_on(self, ctx: ForwardContext) -> Wanted:
        return ctx.wanted if self.narrows else EVERY_TOKEN

"""Attention of a decoder's tokens to what its encoder has given, whose keys and values lie in the KV cache."""

from __future__ import annotations

import torch
from torch import nn

from cadence.core.model.kv_spec import LayerKV
from cadence.kernels.interface.matrix import Pair
from cadence.models.interface.build import BuildContext
from cadence.models.interface.cross_queries import CrossHeads
from cadence.models.interface.model import ForwardContext
from cadence.models.interface.wanted import EVERY_TOKEN
from cadence.models.layers.attention import AttentionSpec
from cadence.models.layers.linear import Linear
from cadence.models.layers.norm import Norm
from cadence.models.layers.rank_share import HeadShare, Held
from cadence.models.layers.weight import Stream


class CrossAttention(nn.Module):
    """x [T, hidden] -> [T, hidden]; `layer` is its index in the cache. Nothing is rotated."""

    def __init__(self, build: BuildContext, layer: int, spec: AttentionSpec) -> None:
        super().__init__()
        share, every = HeadShare.of(spec.shape, build.ranks), (spec.hidden, range(spec.hidden))
        queries, keys = share.queries_of_dim, share.keys_of_dim
        self.q = Linear.shared(build, Held({"": queries}, every), bias=spec.qkv_bias)
        self.kv = Linear.shared(build, Held({"k": keys, "v": keys}, every), bias=spec.qkv_bias)
        self.out = Linear.shared(build, Held({"": every}, queries), bias=spec.out_bias)
        self.shape, self.heads = share.shape, share.queries[1]
        self.layer = layer
        self.narrowed = False  # what comes in is of the wanted tokens alone: set by the model whose last block it is

    @property
    def kv_layer(self) -> LayerKV:
        return LayerKV(self.shape.num_kv_heads, self.shape.head_dim, cross=True)

    @property
    def cross_heads(self) -> CrossHeads:
        return CrossHeads(self.layer, self.shape, self.heads)

    def keys_values(self, states: torch.Tensor, ctx: ForwardContext) -> Pair:
        """states [T, hidden] of the encoder -> its keys and values [T, Hk, D]."""
        heads = self.shape.num_kv_heads
        k, v = self.kv(states, ctx).view(states.shape[0], 2 * heads, self.shape.head_dim).split(heads, dim=1)
        return k, v

    def forward(self, x: torch.Tensor, ctx: ForwardContext) -> torch.Tensor:
        return self.out(self._attend(self.q(x, ctx), ctx), ctx)

    def after(
        self, norm: Norm, x: torch.Tensor, residual: torch.Tensor, ctx: ForwardContext, *, terms: bool = False
    ) -> Stream:
        """Of norm(x + residual), with that sum. terms: as `Linear` has it, of what comes out."""
        q, residual = norm.add_linear(x, residual, self.q, ctx)
        return self.out(self._attend(q, ctx), ctx, terms=terms), residual

    def _attend(self, q: torch.Tensor, ctx: ForwardContext) -> torch.Tensor:
        """q [n, Hq * D] -> [n, Hq * D]"""
        heads = q.view(q.shape[0], -1, self.shape.head_dim)
        tokens = ctx.wanted if self.narrowed else EVERY_TOKEN
        return ctx.attend_cross(self.layer, self.shape, heads, tokens).view(q.shape[0], -1)

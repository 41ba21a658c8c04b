"""Attention whose result is multiplied by a number between 0 and 1 of each entry, which a token says of itself."""

from __future__ import annotations

import torch

from cadence.kernels.interface.ops import Triple
from cadence.models.interface.build import BuildContext
from cadence.models.interface.model import ForwardContext, ModelInputs
from cadence.models.layers.attention import Attention, AttentionSpec
from cadence.models.layers.linear import Linear
from cadence.models.layers.rank_share import HeadShare, Held


class GatedAttention(Attention):
    """A checkpoint's projection to queries has the gate of each head after the head: part `q+gate`."""

    def projection(self, build: BuildContext, spec: AttentionSpec, share: HeadShare) -> Linear:
        dim, (count, own), keys = share.shape.head_dim, share.queries, share.keys_of_dim
        heads = [range(2 * dim * head, 2 * dim * head + dim) for head in own]
        gates = [range(head.stop, head.stop + dim) for head in heads]
        rows = {"q": share.queries_of_dim, "gate": share.queries_of_dim, "k": keys, "v": keys}
        picked = {"q+gate": (2 * dim * count, (*heads, *gates))}
        return Linear.shared(build, Held(rows, (spec.hidden, range(spec.hidden)), picked), bias=spec.qkv_bias)

    def mix(self, projected: torch.Tensor, inputs: ModelInputs, ctx: ForwardContext) -> torch.Tensor:
        width = self.shape.num_heads * self.shape.head_dim
        gate = self.going_on(ctx).pick(projected[:, width : 2 * width], ctx.ops)
        return ctx.ops.states.sigmoid_gate(super().mix(projected, inputs, ctx), gate)

    def heads(self, projected: torch.Tensor, inputs: ModelInputs, ctx: ForwardContext) -> Triple:
        heads, keys = self.shape.num_heads, self.shape.num_kv_heads
        by_head = projected.view(projected.shape[0], -1, self.shape.head_dim)
        q, _, k, v = by_head.split((heads, heads, keys, keys), dim=1)
        return q, k, v

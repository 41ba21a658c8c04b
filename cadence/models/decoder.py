"""The decoder all families share: an embedding, layers on a residual stream, a norm, a head.

The stream is carried as a pair (x, residual) whose sum is its value, so that every addition falls together with the
norm that follows it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import nn

from cadence.core.kv_spec import LayerKV
from cadence.models.interfaces import ForwardContext
from cadence.models.layers.attention import Attention
from cadence.models.layers.embedding import Embedding, LearnedPositions, LMHead
from cadence.models.layers.mlp import GatedMLP, PlainMLP
from cadence.models.layers.norm import Norm, Stream
from cadence.models.weight_map import WeightMap


class PreNormLayer(nn.Module):
    """Norm before attention, norm before the feed-forward block."""

    def __init__(self, attn: Attention, mlp: GatedMLP | PlainMLP, attn_norm: Norm, mlp_norm: Norm) -> None:
        super().__init__()
        self.attn, self.mlp = attn, mlp
        self.attn_norm, self.mlp_norm = attn_norm, mlp_norm

    def forward(self, x: torch.Tensor, residual: torch.Tensor, positions: torch.Tensor, ctx: ForwardContext) -> Stream:
        x, residual = self.attn.after(self.attn_norm, x, residual, positions, ctx)
        return self.mlp.after(self.mlp_norm, x, residual)


class SandwichLayer(nn.Module):
    """As `PreNormLayer`, and each block's output is normalised once more before it joins the stream."""

    def __init__(self, attn: Attention, mlp: GatedMLP, before: tuple[Norm, Norm], after: tuple[Norm, Norm]) -> None:
        super().__init__()
        self.attn, self.mlp = attn, mlp
        self.attn_norm, self.mlp_norm = before
        self.attn_post_norm, self.mlp_post_norm = after

    def forward(self, x: torch.Tensor, residual: torch.Tensor, positions: torch.Tensor, ctx: ForwardContext) -> Stream:
        x, residual = self.attn.after(self.attn_norm, x, residual, positions, ctx)
        x, residual = self.mlp.after(self.mlp_norm, self.attn_post_norm(x), residual)
        return self.mlp_post_norm(x), residual


class PostNormLayer(nn.Module):
    """Norm after each addition; the stream leaves the layer normalised."""

    def __init__(self, attn: Attention, mlp: PlainMLP, attn_norm: Norm, mlp_norm: Norm) -> None:
        super().__init__()
        self.attn, self.mlp = attn, mlp
        self.attn_norm, self.mlp_norm = attn_norm, mlp_norm

    def forward(self, x: torch.Tensor, residual: torch.Tensor, positions: torch.Tensor, ctx: ForwardContext) -> Stream:
        x = ctx.ops.add(x, residual)
        x, _ = self.attn_norm.add(self.attn(x, positions, ctx), self.attn.kept(x, ctx))
        x, _ = self.mlp_norm.add(self.mlp(x), x)
        return x, ctx.ops.zeros_like(x)


Layer = PreNormLayer | SandwichLayer | PostNormLayer


class DecoderLM(nn.Module):
    """Implements `CausalLM`. A family builds the parts and names its weights; the path through them is this one."""

    weights: ClassVar[WeightMap]

    def __init__(
        self, embed: Embedding | LearnedPositions, layers: Sequence[Layer], norm: Norm, lm_head: LMHead
    ) -> None:
        super().__init__()
        self.embed = embed
        self.layers = nn.ModuleList(layers)
        self.norm = norm
        self.lm_head = lm_head
        self.vocab_size = lm_head.weight.shape[0]

    def kv_layers(self) -> list[LayerKV]:
        return [layer.attn.kv for layer in self.layers]

    def forward(self, ids: torch.Tensor, positions: torch.Tensor, ctx: ForwardContext) -> torch.Tensor:
        x = self.embed(ids, positions)
        residual = ctx.ops.zeros_like(x)
        for layer in self.layers:
            x, residual = layer(x, residual, positions, ctx)
        return self.norm.add(x, residual)[0]

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.lm_head(hidden)

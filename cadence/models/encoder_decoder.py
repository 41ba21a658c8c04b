"""The encoder-decoder all families share. Its encoder reads a text or sound, both ways; its decoder is one whose layers
attend to the encoder's output between their own tokens and the feed-forward block.

A layer i of the decoder has two layers of the KV cache: 2 i of its own tokens, 2 i + 1 of the encoder's output.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice

import torch
from torch import nn

from cadence.core.model.kv_spec import LayerKV
from cadence.core.model.state_spec import LayerState
from cadence.kernels.interface.attention_batch import Sees
from cadence.kernels.interface.matrix import Pair
from cadence.models.decoder import Layer
from cadence.models.encoder import EncoderEmbedding
from cadence.models.interface.cross_queries import CrossHeads
from cadence.models.interface.encoder import EncoderBatch
from cadence.models.interface.model import ForwardContext, ModelInputs, PoolHead
from cadence.models.interface.stage import Absent
from cadence.models.layers.attention import Attention
from cadence.models.layers.cross_attention import CrossAttention
from cadence.models.layers.embedding import Embedding, LMHead, LogitsBias, NoLogitsBias
from cadence.models.layers.mlp import GatedMLP, PlainMLP
from cadence.models.layers.norm import Norm
from cadence.models.layers.weight import Stream
from cadence.models.mapped_module import MappedModule
from cadence.models.stage_ends import FromTokens, StageEntry

KV_LAYERS = 2  # of a layer


class CrossPreNormLayer(nn.Module):
    """As `PreNormLayer`, with attention to the encoder's output after that to its own tokens. norms: before each of
    the three blocks"""

    def __init__(
        self,
        attn: Attention,
        cross: CrossAttention,
        mlp: GatedMLP | PlainMLP,
        norms: tuple[Norm, Norm, Norm],
        *,
        terms: bool = False,
    ) -> None:
        super().__init__()
        self.attn, self.cross, self.mlp = attn, cross, mlp
        self.attn_norm, self.cross_norm, self.mlp_norm = norms
        self.terms = self.leaves_terms = terms

    def forward(self, x: torch.Tensor, residual: torch.Tensor, inputs: ModelInputs, ctx: ForwardContext) -> Stream:
        x, residual = self.attn.after(self.attn_norm, x, residual, inputs, ctx, terms=self.terms)
        x, residual = self.cross.after(self.cross_norm, x, residual, ctx, terms=self.terms)
        return self.mlp.after(self.mlp_norm, x, residual, ctx, terms=self.leaves_terms)


class CrossPostNormLayer(nn.Module):
    """As `PostNormLayer`, with attention to the encoder's output after that to its own tokens. norms: after each of
    the three blocks"""

    def __init__(
        self, attn: Attention, cross: CrossAttention, mlp: GatedMLP | PlainMLP, norms: tuple[Norm, Norm, Norm]
    ) -> None:
        super().__init__()
        self.attn, self.cross, self.mlp = attn, cross, mlp
        self.attn_norm, self.cross_norm, self.mlp_norm = norms

    def forward(self, x: torch.Tensor, residual: torch.Tensor, inputs: ModelInputs, ctx: ForwardContext) -> Stream:
        x = ctx.ops.add(x, residual)
        x, _ = self.attn_norm.add(self.attn(x, inputs, ctx), self.attn.kept(x, ctx), ctx)
        x, _ = self.cross_norm.add(self.cross(x, ctx), x, ctx)
        x, _ = self.mlp_norm.add(self.mlp(x, ctx), x, ctx)
        return x, ctx.ops.zeros_like(x)


CrossLayer = CrossPreNormLayer | CrossPostNormLayer


class TextFront(nn.Module):
    """How texts come into an encoder."""

    def __init__(self, embed: Embedding | EncoderEmbedding) -> None:
        super().__init__()
        self.embed = embed

    def forward(self, batch: EncoderBatch, ctx: ForwardContext) -> torch.Tensor:
        return self.embed(ModelInputs(batch.ids, batch.positions), ctx)


class EncoderStack(nn.Module):
    """The encoder by itself: a batch of contents -> [T, hidden]."""

    def __init__(self, front: nn.Module, layers: Sequence[Layer], norm: Norm) -> None:
        """front: a batch of contents -> [T, hidden]. norm: after the last layer"""
        super().__init__()
        self.front = front
        self.layers = nn.ModuleList(layers)
        self.norm = norm

    def forward(self, batch: EncoderBatch, ctx: ForwardContext) -> torch.Tensor:
        x = self.front(batch, ctx)
        residual, inputs = ctx.ops.zeros_like(x), ModelInputs(batch.ids, batch.positions)
        for layer in self.layers:
            x, residual = layer(x, residual, inputs, ctx)
        return self.norm.add(x, residual, ctx)[0]


@dataclass(frozen=True, slots=True)
class EncoderDecoderParts:
    encoder: EncoderStack
    embed: Embedding | EncoderEmbedding  # of the decoder's tokens
    layers: Sequence[CrossLayer | Absent]
    norm: Norm  # after the last layer
    lm_head: LMHead
    logits_bias: LogitsBias | NoLogitsBias
    dtype: torch.dtype  # of activations
    mels: int = 0  # of the features that the encoder reads; 0 = it reads texts


class EncoderDecoderLM(MappedModule):
    """Implements `EncoderDecoder`. A family builds the parts and names its weights; the path through them is this one.

    Layers of the decoder that another stage has are `Absent`. The encoder is on every stage, which keeps the keys of
    its own layers.
    """

    sees = Sees.CAUSAL
    generates = True

    def __init__(self, parts: EncoderDecoderParts) -> None:
        super().__init__()
        self.embed = parts.embed
        self.encoder = parts.encoder
        self.layers = nn.ModuleList(parts.layers)
        self.norm = parts.norm
        self.lm_head = parts.lm_head
        self.logits_bias = parts.logits_bias
        self.entry: StageEntry = FromTokens(parts.embed)
        self.dtype, self.mels = parts.dtype, parts.mels
        self.vocab_size = parts.lm_head.vocab_size
        own = [index for index, layer in enumerate(parts.layers) if not isinstance(layer, Absent)]
        self.own_blocks = range(own[0], own[-1] + 1)  # layers of the decoder
        self.own_layers = range(KV_LAYERS * own[0], KV_LAYERS * (own[-1] + 1))  # of the KV cache
        if own[-1] == len(parts.layers) - 1:
            last = self.layers[-1]
            last.attn.narrow()
            last.cross.narrowed = True

    def kv_layers(self) -> list[LayerKV]:
        return [kv for layer in self._own() for kv in (layer.attn.kv, layer.cross.kv_layer)]

    def state_layers(self) -> list[LayerState]:
        return []

    def encoder_kv_layers(self) -> list[LayerKV]:
        return [replace(layer.attn.kv, passing=True) for layer in self.encoder.layers]

    def cross_heads(self) -> list[CrossHeads]:
        return [layer.cross.cross_heads for layer in self._own()]

    def encode(self, batch: EncoderBatch, ctx: ForwardContext) -> torch.Tensor:
        return self.encoder(batch, ctx)

    def cross_keys(self, states: torch.Tensor, ctx: ForwardContext) -> Iterator[tuple[int, Pair]]:
        for layer in self._own():
            yield layer.cross.layer, layer.cross.keys_values(states, ctx)

    def forward(self, inputs: ModelInputs, ctx: ForwardContext) -> torch.Tensor:
        x, residual = self.entry.enter(inputs, ctx)
        for layer in self._own():
            x, residual = layer(x, residual, inputs, ctx)
        return self.norm.add(x, residual, ctx)[0]

    def pool_heads(self) -> Mapping[str, PoolHead]:
        return {}

    def logits(self, hidden: torch.Tensor, ctx: ForwardContext) -> torch.Tensor:
        return self.logits_bias(self.lm_head(hidden, ctx), ctx)

    def _own(self) -> Iterator[nn.Module]:
        return islice(self.layers, self.own_blocks.start, self.own_blocks.stop)

"""The encoder all families share: an embedding, layers whose tokens see each other both ways, and what is made of
their hidden states. Its layers and blocks are a decoder's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

import torch
from torch import nn

from cadence.core.errors import ConfigError
from cadence.core.model.kv_spec import LayerKV
from cadence.core.model.state_spec import LayerState
from cadence.core.pooled.pooling import EMBED
from cadence.kernels.interface.attention_batch import NO_BIAS, AttentionShape, DistanceBias, Sees
from cadence.models.decoder import Layer, PostNormLayer
from cadence.models.dims import split_heads
from cadence.models.interface.build import BuildContext
from cadence.models.interface.model import ForwardContext, ModelInputs, PoolHead
from cadence.models.interface.pool_head import SameVector
from cadence.models.interface.stage import Absent, own_layers
from cadence.models.layers.embedding import Embedding, NoTable, PositionTable
from cadence.models.layers.norm import LayerNorm, Norm
from cadence.models.mapped_module import MappedModule
from cadence.models.stage_ends import FromTokens, StageEntry


@dataclass(frozen=True, slots=True)
class EncoderDims:
    vocab: int
    hidden: int
    intermediate: int
    layers: int
    heads: int
    positions: int  # tokens of a text, at most
    eps: float
    activation: str

    def shape(self, window: int = 0, bias: DistanceBias = NO_BIAS) -> AttentionShape:
        head_dim = split_heads(self.hidden, self.heads)
        return AttentionShape(self.heads, self.heads, head_dim, head_dim**-0.5, window, bias=bias)

    def norm(self, build: BuildContext) -> LayerNorm:
        return LayerNorm(build, self.hidden, self.eps)


class EncoderEmbedding(nn.Module):
    """T tokens -> norm(token vector + vector of its text + vector of its position), [T, hidden]."""

    def __init__(
        self, tokens: Embedding, norm: Norm, *, types: PositionTable | NoTable, places: PositionTable | NoTable
    ) -> None:
        super().__init__()
        self.tokens, self.norm = tokens, norm
        self.types, self.places = types, places

    def forward(self, inputs: ModelInputs, ctx: ForwardContext) -> torch.Tensor:
        positions = inputs.rope_positions
        x = self.types(self.tokens(inputs, ctx), ctx.token_types.of(positions, ctx.ops), ctx)
        return self.norm(self.places(x, positions, ctx), ctx)


@dataclass(frozen=True, slots=True)
class EncoderParts:
    embed: EncoderEmbedding
    layers: Sequence[Layer | Absent]
    norm: Norm  # after the last layer
    vocab_size: int


class EncoderModel(MappedModule):
    """As `CausalLM` has it, but for logits. A family builds the parts and names its weights.

    Layers that another stage has are `Absent`; `stage.py` takes out what else others have.
    """

    sees = Sees.BOTH_WAYS
    generates = False

    def __init__(self, parts: EncoderParts, heads: Mapping[str, nn.Module] | None = None) -> None:
        """heads: `PoolHead`s beside that of embeddings, by name"""
        super().__init__()
        self.embed = parts.embed
        self.layers = nn.ModuleList(parts.layers)
        self.norm = parts.norm
        self.heads = nn.ModuleDict(heads or {})
        self.entry: StageEntry = FromTokens(parts.embed)
        self.vocab_size = parts.vocab_size
        self.own_blocks = self.own_layers = own_layers(parts.layers)
        self._is_post_norm = all(isinstance(layer, PostNormLayer) for layer in parts.layers)  # and all are here

    def kv_layers(self) -> list[LayerKV]:
        """A layer's keys serve its own queries in one forward: all layers write theirs to the same place."""
        shapes = [layer.attn.shape for layer in self._own()]
        return [LayerKV(shape.num_kv_heads, shape.head_dim, passing=True) for shape in shapes]

    def state_layers(self) -> list[LayerState]:
        return []

    def forward(self, inputs: ModelInputs, ctx: ForwardContext) -> torch.Tensor:
        if self._is_post_norm:
            x = self.embed(inputs, ctx)
            for layer in self.layers:
                x = layer.normed(x, inputs, ctx)
            return self.norm(x, ctx)
        x, residual = self.entry.enter(inputs, ctx)
        for layer in self._own():
            x, residual = layer(x, residual, inputs, ctx)
        return self.norm.add(x, residual, ctx)[0]

    def _own(self) -> Iterator[nn.Module]:
        return islice(self.layers, self.own_layers.start, self.own_layers.stop)

    def pool_heads(self) -> Mapping[str, PoolHead]:
        return {EMBED: SameVector(), **self.heads}

    def logits(self, hidden: torch.Tensor, ctx: ForwardContext) -> torch.Tensor:
        raise TypeError(f"{type(self).__name__} has no logits")


def learned_positions(build: BuildContext, dims: EncoderDims, offset: int = 0) -> PositionTable:
    """`offset` rows come first unused."""
    if build.max_model_len > dims.positions:
        limit = f"max_model_len {build.max_model_len} is more than the {dims.positions} positions the model has learned"
        raise ConfigError(limit, field="max_model_len")
    return PositionTable(build, dims.positions, dims.hidden, offset)

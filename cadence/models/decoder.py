"""The decoder all families share: an embedding, layers on a residual stream, a norm, a head.

The stream is carried as a pair (x, residual) whose sum is its value, so that every addition falls together with the
norm that follows it. `attn` of a layer is any `Mixer`: attention, or what keeps a state in its place.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

import torch
from torch import nn

from cadence.core.model.kv_spec import LayerKV
from cadence.core.model.state_spec import LayerState
from cadence.core.pooled.pooling import EMBED
from cadence.kernels.interface.attention_batch import Sees
from cadence.kernels.interface.rope_ops import NO_AXES, AxesTable
from cadence.models.interface.model import ForwardContext, ModelInputs, PoolHead
from cadence.models.interface.pool_head import SameVector
from cadence.models.interface.stage import Absent, own_layers
from cadence.models.layers.attention import Attention
from cadence.models.layers.embedding import Embedding, LearnedPositions, LMHead
from cadence.models.layers.experts import Experts
from cadence.models.layers.mixer import Mixer
from cadence.models.layers.mlp import ExactGeluMLP, GatedMLP, PlainMLP
from cadence.models.layers.norm import Norm
from cadence.models.layers.shared_experts import SharedExperts
from cadence.models.layers.tower import NoTower, Tower
from cadence.models.layers.weight import Stream
from cadence.models.mapped_module import MappedModule
from cadence.models.stage_ends import FromTokens, StageEntry

FeedForward = GatedMLP | ExactGeluMLP | PlainMLP | Experts | SharedExperts


class PreNormLayer(nn.Module):
    """Norm before attention, norm before the feed-forward block. `terms`: all norms it meets are RMS norms, which may
    get what the blocks give in terms to add up."""

    def __init__(self, attn: Mixer, mlp: FeedForward, attn_norm: Norm, mlp_norm: Norm, *, terms: bool = False) -> None:
        super().__init__()
        self.attn, self.mlp = attn, mlp
        self.attn_norm, self.mlp_norm = attn_norm, mlp_norm
        self.terms = self.leaves_terms = terms

    def forward(self, x: torch.Tensor, residual: torch.Tensor, inputs: ModelInputs, ctx: ForwardContext) -> Stream:
        x, residual = self.attn.after(self.attn_norm, x, residual, inputs, ctx, terms=self.terms)
        return self.mlp.after(self.mlp_norm, x, residual, ctx, terms=self.leaves_terms)


class MixerLayer(nn.Module):
    """As `PreNormLayer`, without a feed-forward block."""

    def __init__(self, attn: Mixer, attn_norm: Norm, *, terms: bool = False) -> None:
        super().__init__()
        self.attn = attn
        self.attn_norm = attn_norm
        self.leaves_terms = terms

    def forward(self, x: torch.Tensor, residual: torch.Tensor, inputs: ModelInputs, ctx: ForwardContext) -> Stream:
        return self.attn.after(self.attn_norm, x, residual, inputs, ctx, terms=self.leaves_terms)


class SandwichLayer(nn.Module):
    """As `PreNormLayer`, and each block's output is normalised once more before it joins the stream."""

    def __init__(self, attn: Attention, mlp: FeedForward, before: tuple[Norm, Norm], after: tuple[Norm, Norm]) -> None:
        super().__init__()
        self.attn, self.mlp = attn, mlp
        self.attn_norm, self.mlp_norm = before
        self.attn_post_norm, self.mlp_post_norm = after

    def forward(self, x: torch.Tensor, residual: torch.Tensor, inputs: ModelInputs, ctx: ForwardContext) -> Stream:
        x, residual = self.attn.after(self.attn_norm, x, residual, inputs, ctx)
        x, residual = self.mlp.after(self.mlp_norm, self.attn_post_norm(x, ctx), residual, ctx)
        return self.mlp_post_norm(x, ctx), residual


class PostNormLayer(nn.Module):
    """Norm after each addition; the stream leaves the layer normalised."""

    def __init__(self, attn: Attention, mlp: GatedMLP | PlainMLP, attn_norm: Norm, mlp_norm: Norm) -> None:
        super().__init__()
        self.attn, self.mlp = attn, mlp
        self.attn_norm, self.mlp_norm = attn_norm, mlp_norm

    def forward(self, x: torch.Tensor, residual: torch.Tensor, inputs: ModelInputs, ctx: ForwardContext) -> Stream:
        x = self.normed(ctx.ops.add(x, residual), inputs, ctx)
        return x, ctx.ops.zeros_like(x)

    def normed(self, x: torch.Tensor, inputs: ModelInputs, ctx: ForwardContext) -> torch.Tensor:
        """The same of a stream that is one tensor, before and after."""
        x, _ = self.attn_norm.add(self.attn(x, inputs, ctx), self.attn.kept(x, ctx), ctx)
        return self.mlp_norm.add(self.mlp(x, ctx), x, ctx)[0]


class ParallelLayer(nn.Module):
    """Attention and the feed-forward block side by side: both are of the stream as it comes in, after a norm each, or
    after one that they share."""

    def __init__(self, attn: Attention, mlp: FeedForward, attn_norm: Norm, mlp_norm: Norm | None = None) -> None:
        super().__init__()
        self.attn, self.mlp = attn, mlp
        self.attn_norm, self.mlp_norm = attn_norm, mlp_norm

    def forward(self, x: torch.Tensor, residual: torch.Tensor, inputs: ModelInputs, ctx: ForwardContext) -> Stream:
        normed, residual = self.attn_norm.add(x, residual, ctx)
        kept = self.attn.kept(residual, ctx)
        beside = self.attn.kept(normed, ctx) if self.mlp_norm is None else self.mlp_norm(kept, ctx)
        return ctx.ops.add(self.attn(normed, inputs, ctx), self.mlp(beside, ctx)), kept


Layer = PreNormLayer | MixerLayer | SandwichLayer | PostNormLayer | ParallelLayer


@dataclass(frozen=True, slots=True)
class DecoderParts:
    embed: Embedding | LearnedPositions
    layers: Sequence[Layer | Absent]
    norm: Norm  # after the last layer
    lm_head: LMHead
    tower: Tower = field(default_factory=NoTower)
    stream: float = 1.0  # times the stream are hidden states between layers, as others have them


class DecoderLM(MappedModule):
    """Implements `CausalLM`. A family builds the parts and names its weights; the path through them is this one. Where
    another head was asked for, `headed.py` puts it in the place of `lm_head`.

    Layers that another stage has are `Absent`; `stage.py` takes out what else others have.
    """

    sees = Sees.CAUSAL
    generates = True

    def __init__(self, parts: DecoderParts) -> None:
        super().__init__()
        self.embed = parts.embed
        self.layers = nn.ModuleList(parts.layers)
        self.norm = parts.norm
        self.lm_head = parts.lm_head
        self.tower = parts.tower
        self._stream = parts.stream
        self.heads = nn.ModuleDict()  # each a `PoolHead`, beside that of hidden states as they are
        self.entry: StageEntry = FromTokens(parts.embed)
        self.vocab_size = parts.lm_head.vocab_size
        self.own_blocks = own_layers(parts.layers)
        places = [mixer.place for mixer in self._mixers() if mixer.kv is not None]
        self.own_layers = range(places[0], places[-1] + 1) if places else range(0)
        for place, mixer in enumerate(mixer for mixer in self._mixers() if mixer.state is not None):
            mixer.place_state(place)
        if self.own_blocks and self.own_blocks.stop == len(parts.layers):
            self.layers[-1].attn.narrow()

    def kv_layers(self) -> list[LayerKV]:
        """Both ways keys serve one forward alone, and a window is not one that slides."""
        found = [kv for mixer in self._mixers() if (kv := mixer.kv) is not None]
        return found if self.sees is Sees.CAUSAL else [replace(kv, window=0, passing=True) for kv in found]

    def state_layers(self) -> list[LayerState]:
        return [state for mixer in self._mixers() if (state := mixer.state) is not None]

    def forward(self, inputs: ModelInputs, ctx: ForwardContext) -> torch.Tensor:
        x, residual = self.entry.enter(inputs, ctx)
        for index, layer in zip(self.own_blocks, self._own(), strict=True):
            if index in ctx.aux.layers:
                stream = layer.attn_norm.add(x, residual, ctx)[1]
                ctx.aux.put(index, stream if self._stream == 1.0 else ctx.ops.scale(stream, self._stream))
            x, residual = layer(x, residual, inputs, ctx)
        return self.norm.add(x, residual, ctx)[0]

    def _own(self) -> Iterator[nn.Module]:
        return islice(self.layers, self.own_blocks.start, self.own_blocks.stop)

    def _mixers(self) -> Iterator[Mixer]:
        return (layer.attn for layer in self._own())

    @property
    def width(self) -> int:
        """Entries of the stream, and of what a tower puts there."""
        return next(self._mixers()).width

    def axes(self) -> AxesTable:
        """What turns tokens, by the axes of their positions."""
        return next((mixer.axes for mixer in self._mixers() if mixer.kv is not None), NO_AXES)

    def pool_heads(self) -> Mapping[str, PoolHead]:
        return {EMBED: SameVector(), **self.heads}

    def logits(self, hidden: torch.Tensor, ctx: ForwardContext) -> torch.Tensor:
        return self.lm_head(hidden, ctx)

"""What the runner knows of a model: inputs and a context in, hidden states out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch

from cadence.core.model.kv_spec import LayerKV
from cadence.core.model.state_spec import LayerState
from cadence.kernels.interface.attention_batch import AttentionBatch, AttentionShape, Sees
from cadence.kernels.interface.ops import Ops, Rotation, Triple
from cadence.models.interface.aux_hidden import NO_AUX, AuxHiddenStates
from cadence.models.interface.cross_queries import NO_CROSS_QUERIES, CrossQueries
from cadence.models.interface.encoder_lengths import NO_ENCODER, EncoderLengths
from cadence.models.interface.lora_batch import NO_LORA, LoraBatch
from cadence.models.interface.media import MODEL_ROPE, NO_OVERLAY, NO_SPANS, MediaOverlay, RopeRows, SeenSpans
from cadence.models.interface.row_states import NO_STATES, RowStates
from cadence.models.interface.token_types import ONE_TEXT, TokenTypes
from cadence.models.interface.wanted import EVERY_TOKEN, Wanted


@dataclass(frozen=True, slots=True)
class ModelInputs:
    """What T tokens are. Where their keys lie and how far they see is another matter: that of the `AttentionBatch`."""

    ids: torch.Tensor  # [T] int32
    rope_positions: torch.Tensor  # [T] int64: what rotates them, or finds the learned vectors of their places


@dataclass(frozen=True, slots=True)
class LayerCache:
    """Where one attention layer keeps its keys and values."""

    group: int
    k: torch.Tensor  # [num_blocks, Hk, block_size, D], a block dense; other layers may lie between two blocks
    v: torch.Tensor  # [num_blocks, Hk, block_size, D], as k


@dataclass(frozen=True, slots=True)
class ForwardContext:
    """Everything a forward pass needs besides inputs and weights; every layer gets it. Built per step, never global."""

    ops: Ops
    batch: AttentionBatch
    caches: Sequence[LayerCache]  # by layer index
    wanted: Wanted = EVERY_TOKEN
    aux: AuxHiddenStates = NO_AUX  # what else the forward gives
    lora: LoraBatch = NO_LORA  # the adapters of its tokens
    token_types: TokenTypes = ONE_TEXT  # which of its prompt's texts a token belongs to
    encoder: EncoderLengths = NO_ENCODER  # how far cross attention sees
    cross_queries: CrossQueries = NO_CROSS_QUERIES  # what is kept of how it looks
    overlay: MediaOverlay = NO_OVERLAY  # what pictures and sounds put in the place of tokens
    rope: RopeRows = MODEL_ROPE  # what turns its tokens, where positions have axes
    spans: SeenSpans = NO_SPANS  # of tokens that see each other, whatever their order
    states: RowStates = NO_STATES  # of layers that keep a state in place of keys

    def attend(
        self,
        layer: int,
        shape: AttentionShape,
        qkv: Triple,
        rope_positions: torch.Tensor,
        rotation: Rotation,
        tokens: Wanted = EVERY_TOKEN,
    ) -> torch.Tensor:
        """Rotates by rope_positions [T], stores this step's keys and values at the batch's slots, attends.

        qkv = q [T, Hq, D], k and v [T, Hk, D], overwritten -> [T, Hq, D], or of some of the tokens.
        """
        cache = self.caches[layer]
        kv = (cache.k, cache.v)
        rotation, rope_positions = self.rope.turning(rotation, rope_positions)
        q = self.ops.rope_write_kv(qkv, rope_positions, rotation, kv, self.batch, cache.group)
        own = tokens.attending(self.batch)
        attended = self.ops.paged_attention(tokens.pick(q, self.ops), kv, own, cache.group, shape)
        if own is self.batch:  # else the last token of each row alone: in a span, it is the last of it
            for spans in self.spans.batches:
                at = self.spans.tokens
                attended[at] = self.ops.paged_attention(self.ops.pick(q, at), kv, spans, cache.group, shape)
        return attended

    def attend_cross(
        self, layer: int, shape: AttentionShape, q: torch.Tensor, tokens: Wanted = EVERY_TOKEN
    ) -> torch.Tensor:
        """q [n, Hq, D], of these tokens -> [n, Hq, D]: each attends to all that its row's encoder has given."""
        self.cross_queries.put(layer, q)
        cache = self.caches[layer]
        batch = self.encoder.attending(tokens, self.batch)
        return self.ops.paged_attention(q, (cache.k, cache.v), batch, cache.group, shape)

    def for_heads(self) -> ForwardContext:
        """For heads on pooled states: adapters are of the layers alone."""
        return replace(self, lora=NO_LORA)

    def at_lines(self, tokens: torch.Tensor) -> ForwardContext:
        """For `logits` of these tokens [n] int64 of the batch."""
        return replace(self, lora=self.lora.at_lines(tokens)) if self.lora.active else self


class PoolHead(Protocol):
    """What a model makes of pooled hidden states."""

    def __call__(self, x: torch.Tensor, ctx: ForwardContext) -> torch.Tensor:
        """x [n, hidden], pooled or one of each token -> [n, entries]. A row's bits do not depend on the others."""
        ...


class CausalLM(Protocol):
    """A decoder, or an encoder, which has no logits. Built by `models.loader`, run by the runner."""

    vocab_size: int
    own_layers: range  # of all layers that keep keys, those that this device has
    sees: Sees  # which keys of its sequence a token sees
    generates: bool  # it has logits; else hidden states are all that it gives

    def kv_layers(self) -> list[LayerKV]:
        """One entry per attention layer that this device has, in order of the layer index used with `ctx.attend`."""
        ...

    def state_layers(self) -> list[LayerState]:
        """One entry per layer of this device that keeps a state in place of keys, in the order of `ctx.states`."""
        ...

    def forward(self, inputs: ModelInputs, ctx: ForwardContext) -> torch.Tensor:
        """T tokens -> hidden states of the wanted ones after the final norm, [T, H] or [S, H]. From where on it
        computes these alone is the model's to say: see `wanted`."""
        ...

    def pool_heads(self) -> Mapping[str, PoolHead]:
        """What may be made of pooled hidden states, by name: `embed`, `classify`."""
        ...

    def logits(self, hidden: torch.Tensor, ctx: ForwardContext) -> torch.Tensor:
        """hidden [S, H], some of what the forward with `ctx` gave -> [S, vocab_size], float32 or the model's dtype
        (soft-capped where the model does so)."""
        ...

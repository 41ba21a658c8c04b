"""What the runner knows of a model with an encoder, beside what it knows of all models."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import nn

from cadence.core.model.kv_spec import LayerKV
from cadence.kernels.interface.matrix import Pair
from cadence.models.interface.cross_queries import CrossHeads
from cadence.models.interface.model import CausalLM, ForwardContext


@dataclass(frozen=True, slots=True)
class EncoderBatch:
    """Contents one after another, T positions in all. Each is a text, or each is sound."""

    ids: torch.Tensor  # [T] int32, of texts; of sound, zeros
    positions: torch.Tensor  # [T] int64: each in its content
    features: Sequence[torch.Tensor]  # [mels, frames] of each content that is sound, in the model's dtype


class EncoderDecoder(CausalLM, Protocol):
    """Layers of the decoder have two layers of the KV cache each: of their own tokens, and of the encoder's output."""

    dtype: torch.dtype  # of activations
    mels: int  # of the features that its encoder reads; 0 = it reads texts

    @property
    def encoder(self) -> nn.Module:
        """Two models may have the same."""
        ...

    def encoder_kv_layers(self) -> list[LayerKV]:
        """Keys of the encoder's own layers, which serve the pass that makes them."""
        ...

    def cross_heads(self) -> list[CrossHeads]:
        """Of each layer of the decoder that this device has."""
        ...

    def encode(self, batch: EncoderBatch, ctx: ForwardContext) -> torch.Tensor:
        """-> [T, H], what cross attention reads. ctx: of the encoder's layers, both ways"""
        ...

    def cross_keys(self, states: torch.Tensor, ctx: ForwardContext) -> Iterator[tuple[int, Pair]]:
        """states [T, H] -> by layer of the KV cache its keys and values [T, Hk, D]. ctx: as for `encode`"""
        ...

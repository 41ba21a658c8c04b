"""Towers: what a model sees and hears with, as the runner knows it; and how their vectors come among its tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from cadence.kernels.interface.attention_batch import AttentionBatch
from cadence.kernels.interface.ops import Ops, Rotation


@dataclass(frozen=True, slots=True)
class MediaContent:
    """One item on the device."""

    kind: str
    values: torch.Tensor  # [...], as `MediaItem` has them
    grid: tuple[int, ...]
    length: int  # vectors that come of it


class MediaTower(Protocol):
    """A part of the model that every rank and the first stage has whole. What comes of an item does not depend on the
    others that are encoded with it."""

    reads: frozenset[str]  # kinds of items; empty: there is no tower
    both_ways: bool  # tokens of an item see each other in the layers of the model
    rope_axes: int  # axes of the positions by which the model's tokens are turned; 1 = plain positions

    def encode(self, contents: Sequence[MediaContent], ops: Ops) -> torch.Tensor:
        """-> [all lengths, H], in the model's dtype"""
        ...

    def largest(self, length: int) -> MediaContent:
        """The content that takes most memory to encode among those of so many vectors, or a few more, to be tried
        beforehand."""
        ...


@dataclass(frozen=True, slots=True)
class MediaOverlay:
    """Vectors in place of those of T tokens."""

    sources: torch.Tensor  # [T] int64: which of the vectors a token gets; -1: none
    vectors: torch.Tensor  # [n, H]

    def laid_over(self, x: torch.Tensor) -> torch.Tensor:
        """x [T, H], what the tokens' ids gave"""
        if not self.vectors.shape[0]:
            return x
        given = self.vectors.index_select(0, self.sources.clamp_min(0)).to(x.dtype)
        return torch.where((self.sources >= 0)[:, None], given, x)


NO_OVERLAY = MediaOverlay(torch.empty(0, dtype=torch.int64), torch.empty(0, 0))


@dataclass(frozen=True, slots=True)
class RopeRows:
    """Cosines and sines of each token of a forward, where its position has axes."""

    cos_sin: torch.Tensor  # [T, rotary_dim] float32, as `Rotation` has them; [0, 0]: those of the model's table
    tokens: torch.Tensor  # [T] int64: 0, 1, 2 …

    def turning(self, rotation: Rotation, positions: torch.Tensor) -> tuple[Rotation, torch.Tensor]:
        """What turns the tokens of a forward: a table, and a line of it for each token."""
        if not self.cos_sin.numel():
            return rotation, positions
        return Rotation(self.cos_sin, rotation.norms, rotation.eps, rotation.kv_scales), self.tokens


MODEL_ROPE = RopeRows(torch.empty(0, 0), torch.empty(0, dtype=torch.int64))


@dataclass(frozen=True, slots=True)
class SeenSpans:
    """Tokens of a forward that see all of their own span, beside what comes before it."""

    tokens: torch.Tensor  # [n] int64, among the T
    batches: tuple[AttentionBatch, ...]  # one of these n tokens, whose sequences are the spans; (): there is none


NO_SPANS = SeenSpans(torch.empty(0, dtype=torch.int64), ())

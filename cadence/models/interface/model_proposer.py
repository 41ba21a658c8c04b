"""What is known of a model that drafts for another: a smaller model, or a head on the target's hidden states."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Protocol

import torch

from cadence.core.model.kv_spec import LayerKV
from cadence.kernels.interface.rope_ops import AxesTable
from cadence.models.interface.model import ForwardContext, ModelInputs

# [T, H] each: those logits are made of, and those the next draft starts from.
DraftStates = tuple[torch.Tensor, torch.Tensor]


class TargetStates(Enum):
    """Which of the target's hidden states a proposer begins with."""

    NONE = "none"
    TOKENS = "tokens"  # after the final norm, of every token
    AUX = "aux"  # of every token, as they enter the proposer's `aux_layers`


@dataclass(frozen=True, slots=True)
class DraftVocabulary:
    """The tokens a proposer knows, by the target's ids."""

    target_ids: torch.Tensor  # [size] int64: the target's id of each of the proposer's
    same: bool  # they are 0, 1, 2, …: nothing needs mapping

    @staticmethod
    def leading(size: int, device: torch.device) -> DraftVocabulary:
        """The first `size` of the target's ids."""
        return DraftVocabulary(torch.arange(size, device=device), same=True)

    def widen(self, logits: torch.Tensor, vocab_size: int) -> torch.Tensor:
        """logits [S, size] -> [S, vocab_size] by the target's ids, -inf for tokens the proposer does not know."""
        wide = logits.new_full((logits.shape[0], vocab_size), float("-inf"))
        return wide.index_copy_(1, self.target_ids, logits)


class ModelProposer(Protocol):
    """Drafts tokens one after another. Draft number i is made by `forward(..., i)` and `logits(..., i)`.

    At position p it computes the token of position p + ahead, and keeps its keys in the slot of p; so a forward over
    positions up to p gives logits for the token of p + ahead + 1. Its layers are numbered from 0: `ctx.caches` are its
    own.
    """

    ahead: int  # 1 of a head, which takes the target's states of p along; 0 of a model by itself
    begins_with: TargetStates
    aux_layers: tuple[int, ...]  # of the target
    most_drafts: int  # in a row; 0 = as many as one likes
    vocabulary: DraftVocabulary
    width: int  # entries of the vectors of tokens, in whose place those of pictures may be; 0: it looks at none

    def kv_layers(self) -> list[LayerKV]:
        """One entry per attention layer, in order of the layer index used with `ctx.attend`."""
        ...

    def axes(self) -> AxesTable:
        """What turns its tokens, by the axes of their positions."""
        ...

    def combine(self, states: tuple[torch.Tensor, ...], ctx: ForwardContext) -> torch.Tensor:
        """The target's states, [T, H] each, as `begins_with` says -> [T, H] for the forward of draft 0."""
        ...

    def forward(self, inputs: ModelInputs, hidden: torch.Tensor, ctx: ForwardContext, draft: int) -> DraftStates:
        """T tokens and hidden [T, H] of `combine` or of the forward before -> states of the wanted tokens."""
        ...

    def logits(self, hidden: torch.Tensor, ctx: ForwardContext, draft: int) -> torch.Tensor:
        """hidden [S, H], some of what the forward of this draft gave for logits -> [S, vocabulary size]."""
        ...

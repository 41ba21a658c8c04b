"""Where tokens become a head's vectors, and its states logits: tables of its own, or those of its target."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from cadence.models.decoder import DecoderLM
from cadence.models.interface.build import BuildContext
from cadence.models.interface.model import ForwardContext, ModelInputs
from cadence.models.interface.model_proposer import DraftVocabulary
from cadence.models.layers.embedding import Embedding
from cadence.models.layers.parameter import empty_weight
from cadence.models.layers.weight import WeightHolder


class SharedEmbedding:
    """The target's vectors of tokens, without a factor that its family puts on them. No module: a loader passes it."""

    def __init__(self, target: DecoderLM) -> None:
        self.tokens = target.embed.tokens

    def __call__(self, inputs: ModelInputs, ctx: ForwardContext) -> torch.Tensor:
        return self.tokens.weight.lookup(inputs.ids, 1.0, ctx)


class SharedLMHead:
    """The target's own logits."""

    def __init__(self, target: DecoderLM) -> None:
        self._lm_head = target.lm_head

    def __call__(self, hidden: torch.Tensor, ctx: ForwardContext) -> torch.Tensor:
        return self._lm_head(hidden, ctx)


class DraftLMHead(WeightHolder):
    """hidden [S, size] -> logits [S, known], of rows that may be more."""

    inner = False

    def __init__(self, build: BuildContext, rows: int, size: int, known: int) -> None:
        super().__init__(empty_weight(build, rows, size))
        self._known = known

    def forward(self, hidden: torch.Tensor, ctx: ForwardContext) -> torch.Tensor:
        return self.weight.logits(hidden, ctx)[:, : self._known]


@dataclass(frozen=True, slots=True)
class VocabularyEnds:
    embed: Embedding | SharedEmbedding
    lm_head: DraftLMHead | SharedLMHead
    vocabulary: DraftVocabulary  # of the logits

    @property
    def width(self) -> int:
        """Entries of the vectors of tokens."""
        return self.embed.tokens.weight.cols

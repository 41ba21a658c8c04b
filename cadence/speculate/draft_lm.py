"""A causal model by itself as a proposer: it sees the same tokens as the target, and none of its states."""

from __future__ import annotations

import torch

from cadence.core.model.kv_spec import LayerKV
from cadence.kernels.interface.rope_ops import NO_AXES, AxesTable
from cadence.models.decoder import DecoderLM
from cadence.models.encoder_decoder import EncoderDecoderLM
from cadence.models.interface.model import ForwardContext, ModelInputs
from cadence.models.interface.model_proposer import DraftStates, DraftVocabulary, TargetStates


class DraftLM:
    """Implements `ModelProposer`. Ids mean the same to both models; one may have more of them at the end."""

    ahead = 0
    begins_with = TargetStates.NONE
    aux_layers: tuple[int, ...] = ()
    most_drafts = 0

    def __init__(self, model: DecoderLM | EncoderDecoderLM, target_vocab: int, device: torch.device) -> None:
        self._model = model
        self._known = min(model.vocab_size, target_vocab)
        self.width = model.embed.tokens.weight.cols if isinstance(model, DecoderLM) else 0
        self._nothing = torch.empty((0, 0), device=device)
        self.vocabulary = DraftVocabulary.leading(self._known, device)

    def kv_layers(self) -> list[LayerKV]:
        return self._model.kv_layers()

    def axes(self) -> AxesTable:
        return self._model.axes() if isinstance(self._model, DecoderLM) else NO_AXES

    def combine(self, states: tuple[torch.Tensor, ...], ctx: ForwardContext) -> torch.Tensor:
        return self._nothing

    def forward(self, inputs: ModelInputs, hidden: torch.Tensor, ctx: ForwardContext, draft: int) -> DraftStates:
        states = self._model(inputs, ctx)
        return states, states

    def logits(self, hidden: torch.Tensor, ctx: ForwardContext, draft: int) -> torch.Tensor:
        return self._model.logits(hidden, ctx)[:, : self._known]

"""A head of decoder layers over token vectors and hidden states projected together: EAGLE, and MTP modules."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from cadence.core.model.kv_spec import LayerKV
from cadence.kernels.interface.rope_ops import AxesTable
from cadence.models.decoder import Layer
from cadence.models.heads.vocabulary_ends import VocabularyEnds
from cadence.models.interface.build import BuildContext
from cadence.models.interface.model import ForwardContext, ModelInputs
from cadence.models.interface.model_proposer import DraftStates, TargetStates
from cadence.models.layers.linear import Linear
from cadence.models.layers.norm import Norm
from cadence.models.layers.weight import Stream
from cadence.models.mapped_module import MappedModule
from cadence.models.weight_map import Rule, WeightMap


class Fusion(nn.Module):
    """W [norm(token vector), norm(hidden state)] + b, each half by a matrix of its own: the sum is a `Stream`."""

    def __init__(self, build: BuildContext, size: int, embed_norm: Norm, hidden_norm: Norm, *, bias: bool) -> None:
        super().__init__()
        self.embed_norm, self.hidden_norm = embed_norm, hidden_norm
        self.of_embed = Linear(build, size, size, bias=bias)
        self.of_hidden = Linear(build, size, size)

    def forward(self, embeds: torch.Tensor, hidden: torch.Tensor, ctx: ForwardContext) -> Stream:
        x = self.of_embed(self.embed_norm(embeds, ctx), ctx)
        return x, self.of_hidden(self.hidden_norm(hidden, ctx), ctx)


def fusion_rules(matrix: str, *, embed_first: bool = True) -> tuple[Rule, ...]:
    """matrix: its name in the checkpoint; embed_first: the order of the halves there."""
    first, second = ("of_embed", "of_hidden") if embed_first else ("of_hidden", "of_embed")
    return (
        Rule(f"{matrix}.weight", f"fusion.{first}.weight", columns=(0, 2)),
        Rule(f"{matrix}.weight", f"fusion.{second}.weight", columns=(1, 2)),
        Rule(f"{matrix}.bias", "fusion.of_embed.bias"),
    )


class FusionHead(MappedModule):
    """Implements `ModelProposer`. `feeds_normed`: drafts start from the normed states that logits are made of."""

    ahead = 1
    begins_with = TargetStates.TOKENS
    aux_layers: tuple[int, ...] = ()
    most_drafts = 0

    def __init__(
        self,
        ends: VocabularyEnds,
        fusion: Fusion,
        layers: Sequence[Layer],
        norm: Norm,
        weights: WeightMap,
        *,
        feeds_normed: bool = False,
    ) -> None:
        super().__init__()
        self.embed, self.lm_head, self.vocabulary = ends.embed, ends.lm_head, ends.vocabulary
        self.width = ends.width
        self.fusion = fusion
        self.layers = nn.ModuleList(layers)
        self.layers[-1].attn.narrow()
        self.norm = norm
        self.weights = weights
        self._feeds_normed = feeds_normed

    def kv_layers(self) -> list[LayerKV]:
        return [layer.attn.kv for layer in self.layers]

    def axes(self) -> AxesTable:
        return self.layers[0].attn.axes

    def combine(self, states: tuple[torch.Tensor, ...], ctx: ForwardContext) -> torch.Tensor:
        return states[0]

    def forward(self, inputs: ModelInputs, hidden: torch.Tensor, ctx: ForwardContext, draft: int) -> DraftStates:
        x, residual = self.fusion(ctx.overlay.laid_over(self.embed(inputs, ctx)), hidden, ctx)
        for layer in self.layers:
            x, residual = layer(x, residual, inputs, ctx)
        normed, total = self.norm.add(x, residual, ctx)
        return normed, normed if self._feeds_normed else total

    def logits(self, hidden: torch.Tensor, ctx: ForwardContext, draft: int) -> torch.Tensor:
        return self.lm_head(hidden, ctx)

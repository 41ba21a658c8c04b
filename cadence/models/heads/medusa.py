"""Medusa: heads side by side on the target's last hidden state, one for each token ahead; none sees another's draft.

| layout | tensors of head i |
|---|---|
| vLLM's | `blocks.i.layers.j`, `lm_heads.i`, and `token_map` where they know some tokens only |
| Medusa's own | `i.j.linear`, and `i.n` of n blocks for the logits, with or without the prefix `medusa_head.` |
"""

from __future__ import annotations

import re

import torch
from torch import nn

from cadence.core.errors import ConfigError
from cadence.core.model.kv_spec import LayerKV
from cadence.kernels.interface.ops import Activation
from cadence.kernels.interface.rope_ops import NO_AXES, AxesTable
from cadence.models.heads.head_build import FIELD, HeadBuild
from cadence.models.heads.vocabulary_ends import DraftLMHead, SharedLMHead
from cadence.models.interface.model import ForwardContext, ModelInputs
from cadence.models.interface.model_proposer import DraftStates, DraftVocabulary, TargetStates
from cadence.models.layers.linear import Linear
from cadence.models.mapped_module import MappedModule
from cadence.models.weight_map import Rule, WeightMap

_PREFIX = r"(?P<prefix>(medusa_heads?\.)?)"
_NAMES = {  # what a block's matrix is called -> (pattern of blocks, pattern of matrices that make logits of n blocks)
    re.compile(_PREFIX + r"blocks\.(\d{1,9})\.layers\.(\d{1,9})\.weight"): ("blocks.*.layers.*", "lm_heads.*"),
    re.compile(_PREFIX + r"(\d{1,9})\.(\d{1,9})\.linear\.weight"): ("*.*.linear", "*.{n}"),
}
_MOST = 64  # heads, and blocks of each


class MedusaHead(MappedModule):
    """Implements `ModelProposer`. It keeps no keys: of the target's tokens only those count after which it drafts."""

    ahead = 1
    begins_with = TargetStates.TOKENS
    aux_layers: tuple[int, ...] = ()
    width = 0

    def __init__(
        self,
        blocks: nn.ModuleList,
        lm_heads: nn.ModuleList | list[SharedLMHead],
        vocabulary: DraftVocabulary,
        weights: WeightMap,
    ) -> None:
        """blocks: of each head, linear maps"""
        super().__init__()
        self.blocks, self.lm_heads, self.vocabulary, self.weights = blocks, lm_heads, vocabulary, weights
        self.most_drafts = len(blocks)

    def kv_layers(self) -> list[LayerKV]:
        return []

    def axes(self) -> AxesTable:
        return NO_AXES

    def combine(self, states: tuple[torch.Tensor, ...], ctx: ForwardContext) -> torch.Tensor:
        return states[0]

    def forward(self, inputs: ModelInputs, hidden: torch.Tensor, ctx: ForwardContext, draft: int) -> DraftStates:
        hidden = ctx.wanted.pick(hidden, ctx.ops)
        x = hidden
        for linear in self.blocks[draft]:
            x = ctx.ops.add(x, ctx.ops.activate(linear(x, ctx), Activation.SILU))
        return x, hidden

    def logits(self, hidden: torch.Tensor, ctx: ForwardContext, draft: int) -> torch.Tensor:
        return self.lm_heads[draft](hidden, ctx)


def build_medusa(head: HeadBuild) -> MedusaHead:
    block, logits, heads, blocks = _layout(head)
    bias = head.has(f"{block.replace('*', '0')}.bias")
    made = nn.ModuleList(
        nn.ModuleList(Linear(head.build, head.hidden, head.hidden, bias=bias) for _ in range(blocks))
        for _ in range(heads)
    )
    lm_heads, vocabulary = _lm_heads(head, heads, logits)
    rules = (Rule(f"{block}.*", "blocks.*.*.*"), Rule(f"{logits}.*", "lm_heads.*.*"))
    return MedusaHead(made, lm_heads, vocabulary, WeightMap(rules, (), ("token_map",)))


def _layout(head: HeadBuild) -> tuple[str, str, int, int]:
    """(pattern of blocks, pattern of matrices that make logits, how many heads, of how many blocks)"""
    for pattern, (block, logits) in _NAMES.items():
        found = [match for name in head.held.names() if (match := pattern.fullmatch(name))]
        if found:
            heads, blocks = (1 + max(int(match[group]) for match in found) for group in (3, 4))
            if max(heads, blocks) > _MOST:
                raise ConfigError(f"{head.where}: {heads} heads of {blocks} blocks; at most {_MOST} of each", FIELD)
            prefix = found[0]["prefix"]
            return prefix + block, prefix + logits.format(n=blocks), heads, blocks
    raise ConfigError(f"{head.where}: no blocks of Medusa heads among its tensors", FIELD)


def _lm_heads(head: HeadBuild, count: int, source: str) -> tuple[nn.ModuleList | list[SharedLMHead], DraftVocabulary]:
    """One for each head, or one for all, or the target's."""
    vocabulary = head.all_ids()
    if head.has("token_map"):
        vocabulary = head.mapped_ids("token_map", next(iter(head.held.shape("token_map")), 0), offsets=False)
    size = len(vocabulary.target_ids)
    own = sum(head.has(f"{source.replace('*', str(index))}.weight") for index in range(count))
    if own == 0:
        return [SharedLMHead(head.target)] * count, head.all_ids()
    if own == 1:
        return nn.ModuleList([DraftLMHead(head.build, size, head.hidden, size)] * count), vocabulary
    return nn.ModuleList(DraftLMHead(head.build, size, head.hidden, size) for _ in range(count)), vocabulary

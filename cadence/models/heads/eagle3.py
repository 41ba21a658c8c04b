"""EAGLE-3: one decoder layer whose attention sees token vectors beside hidden states, begun with three of the target's
streams; its own logits over tokens that are frequent.

Names in checkpoints: EAGLE-3's own (`midlayer`), or `layers.0` as speculators and vLLM have it.
"""

from __future__ import annotations

import torch
from torch import nn

from cadence.core.errors import ConfigError, WeightsError
from cadence.core.model.kv_spec import LayerKV
from cadence.kernels.interface.rope_ops import AxesTable
from cadence.models.decoder import PreNormLayer
from cadence.models.dims import Dims, read_dims
from cadence.models.heads.config import HeadConfig
from cadence.models.heads.family_layers import family_layers, moved
from cadence.models.heads.head_build import FIELD, HeadBuild
from cadence.models.heads.vocabulary_ends import DraftLMHead, SharedEmbedding, SharedLMHead, VocabularyEnds
from cadence.models.interface.build import BuildContext
from cadence.models.interface.model import ForwardContext, ModelInputs
from cadence.models.interface.model_proposer import DraftStates, TargetStates
from cadence.models.layers.embedding import Embedding
from cadence.models.layers.linear import Linear
from cadence.models.layers.norm import RMSNorm
from cadence.models.layers.weight import Stream
from cadence.models.llama import IGNORED
from cadence.models.mapped_module import MappedModule
from cadence.models.weight_map import Rule, WeightMap

_NAME = "midlayer."
_PREFIXES = ((_NAME, "layers.0."), (_NAME, "model.layers.0."), ("embed_tokens.", "model.embed_tokens."))


class Eagle3Layer(nn.Module):
    """Queries, keys and values are of [norm(token vector), norm(hidden state)], each half by a matrix of its own."""

    def __init__(self, build: BuildContext, layer: PreNormLayer, dims: Dims, *, norm_before_residual: bool) -> None:
        super().__init__()
        self.attn, self.mlp, self.mlp_norm = layer.attn, layer.mlp, layer.mlp_norm
        self.attn.narrow()
        self.embed_qkv = Linear(build, dims.hidden, layer.attn.qkv.parts)
        self.embed_norm = layer.attn_norm
        self.hidden_norm = RMSNorm(build, dims.hidden, dims.eps)
        self._norm_before_residual = norm_before_residual

    def forward(self, embeds: torch.Tensor, hidden: torch.Tensor, inputs: ModelInputs, ctx: ForwardContext) -> Stream:
        normed = self.hidden_norm(hidden, ctx)
        of_embed = self.embed_qkv(self.embed_norm(embeds, ctx), ctx)
        qkv = ctx.ops.add(of_embed, self.attn.qkv(normed, ctx))
        x = self.attn.out(self.attn.mix(qkv, inputs, ctx), ctx)
        residual = self.attn.kept(normed if self._norm_before_residual else hidden, ctx)
        return self.mlp.after(self.mlp_norm, x, residual, ctx)


class Eagle3Head(MappedModule):
    """Implements `ModelProposer`."""

    ahead = 1
    begins_with = TargetStates.AUX
    most_drafts = 0

    def __init__(
        self, ends: VocabularyEnds, fuse: nn.ModuleList, layer: Eagle3Layer, norm: RMSNorm, aux_layers: tuple[int, ...]
    ) -> None:
        """fuse: a matrix for each of the target's streams."""
        super().__init__()
        self.embed, self.lm_head, self.vocabulary = ends.embed, ends.lm_head, ends.vocabulary
        self.width = ends.width
        self.fuse, self.layer, self.norm = fuse, layer, norm
        self.aux_layers = aux_layers

    def kv_layers(self) -> list[LayerKV]:
        return [self.layer.attn.kv]

    def axes(self) -> AxesTable:
        return self.layer.attn.axes

    def combine(self, states: tuple[torch.Tensor, ...], ctx: ForwardContext) -> torch.Tensor:
        total, *rest = [linear(state, ctx) for linear, state in zip(self.fuse, states, strict=True)]
        for part in rest:
            total = ctx.ops.add(total, part)
        return total

    def forward(self, inputs: ModelInputs, hidden: torch.Tensor, ctx: ForwardContext, draft: int) -> DraftStates:
        x, residual = self.layer(ctx.overlay.laid_over(self.embed(inputs, ctx)), hidden, inputs, ctx)
        return self.norm.add(x, residual, ctx)

    def logits(self, hidden: torch.Tensor, ctx: ForwardContext, draft: int) -> torch.Tensor:
        return self.lm_head(hidden, ctx)


def build_eagle3(config: HeadConfig, head: HeadBuild) -> Eagle3Head:
    hf, build = config.layer, head.build
    dims = read_dims(hf)
    if dims.layers != 1:
        raise ConfigError(f"{hf.source}: an EAGLE-3 head has one layer, found {dims.layers}", "num_hidden_layers")
    head.check_hidden(config.target_hidden_size or dims.hidden)
    aux_layers = _aux_layers(config, head)
    fuse = nn.ModuleList(Linear(build, head.hidden, dims.hidden) for _ in aux_layers)
    family = family_layers(hf, hf.architecture, build)
    layer = Eagle3Layer(build, family.layers[0], dims, norm_before_residual=config.norm_before_residual)
    made = Eagle3Head(_ends(config, head, dims), fuse, layer, RMSNorm(build, dims.hidden, dims.eps), aux_layers)
    made.weights = WeightMap(_rules(family.rules, len(aux_layers)), _PREFIXES, (*IGNORED, "t2d", "d2t"))
    return made


def _rules(of_layers: tuple[Rule, ...], num_streams: int) -> tuple[Rule, ...]:
    rules = []
    for rule in of_layers:
        if rule.target.startswith("layers.*.attn.qkv."):
            rules.append(moved(rule, _NAME, "layer.", columns=(1, 2)))
            of_embed = moved(rule, _NAME, "layer.", columns=(0, 2))
            rules.append(Rule(of_embed.source, "layer.embed_qkv.*", rule.part, columns=(0, 2)))
        elif not rule.target.startswith("layers.*.attn_norm."):
            rules.append(moved(rule, _NAME, "layer."))
    streams = [Rule("fc.weight", f"fuse.{i}.weight", columns=(i, num_streams)) for i in range(num_streams)]
    return (
        *rules,
        *streams,
        Rule(_NAME + "input_layernorm.*", "layer.embed_norm.*"),
        Rule(_NAME + "hidden_norm.*", "layer.hidden_norm.*"),
        Rule("norm.*", "norm.*"),
        Rule("embed_tokens.*", "embed.*"),
        Rule("lm_head.*", "lm_head.*"),
    )


def _aux_layers(config: HeadConfig, head: HeadBuild) -> tuple[int, ...]:
    """Where the file does not say: those its authors chose, an early, a middle and a late one."""
    count = len(head.target.layers)
    layers = config.aux_layers or (2, count // 2, count - 3)
    if len(layers) > count or min(layers) < 0 or max(layers) >= count:
        message = f"{head.where}: streams of layers {list(layers)} of a target with layers 0 to {count - 1}"
        raise ConfigError(message, FIELD)
    return layers


def _ends(config: HeadConfig, head: HeadBuild, dims: Dims) -> VocabularyEnds:
    embed: Embedding | SharedEmbedding = SharedEmbedding(head.target)
    if head.has("embed_tokens.weight", "model.embed_tokens.weight"):
        head.check_vocabulary(dims.vocab)
        embed = Embedding(head.build, dims.vocab, dims.hidden)
    else:
        head.check_hidden(dims.hidden)
    size = config.draft_vocab_size or dims.vocab
    if not head.has("lm_head.weight"):
        head.check_hidden(dims.hidden)
        return VocabularyEnds(embed, SharedLMHead(head.target), head.all_ids())
    if head.has("d2t"):
        vocabulary = head.mapped_ids("d2t", size, offsets=True)
    elif size >= head.target.vocab_size:
        vocabulary = head.all_ids()
    else:
        raise WeightsError(f"{head.where}: it knows {size} of {head.target.vocab_size} tokens, but no 'd2t' says which")
    known = len(vocabulary.target_ids)
    return VocabularyEnds(embed, DraftLMHead(head.build, size, dims.hidden, known), vocabulary)

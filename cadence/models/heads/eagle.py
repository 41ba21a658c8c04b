"""EAGLE 1 and 2 (and HASS): a decoder layer that goes on with the target's last hidden states, by its own logits.

Names in checkpoints: EAGLE's own (`fc`, `layers.0`), or those of speculators (`fusion_fc`, `transformer`).
"""

from __future__ import annotations

from cadence.models.dims import read_dims
from cadence.models.heads.config import HeadConfig
from cadence.models.heads.family_layers import family_layers
from cadence.models.heads.fusion import Fusion, FusionHead, fusion_rules
from cadence.models.heads.head_build import HeadBuild
from cadence.models.heads.vocabulary_ends import DraftLMHead, SharedEmbedding, SharedLMHead, VocabularyEnds
from cadence.models.layers.embedding import Embedding
from cadence.models.layers.norm import NoNorm, Norm, RMSNorm
from cadence.models.llama import IGNORED
from cadence.models.weight_map import Rule, WeightMap

_RULES = (
    *fusion_rules("fc"),
    Rule("model.embed_tokens.*", "embed.*"),
    Rule("lm_head.*", "lm_head.*"),
    Rule("embedding_layernorm.*", "fusion.embed_norm.*"),
    Rule("pre_lm_head_layernorm.*", "norm.*"),
)
_PREFIXES = (("model.layers.0.", "transformer."), ("model.", ""), ("fc.", "fusion_fc."))


def build_eagle(config: HeadConfig, head: HeadBuild) -> FusionHead:
    hf, build = config.layer, head.build
    dims = read_dims(hf)
    head.check_hidden(dims.hidden)
    family = family_layers(hf, hf.architecture, build)

    def norm(*names: str) -> Norm:
        """One, where the checkpoint has it."""
        return RMSNorm(build, dims.hidden, dims.eps) if head.has(*names) else NoNorm()

    if not head.has("layers.0.input_layernorm.weight", "transformer.input_layernorm.weight"):
        family.layers[0].attn_norm = NoNorm()
    fusion = Fusion(
        build, dims.hidden, norm("embedding_layernorm.weight"), NoNorm(), bias=head.has("fc.bias", "fusion_fc.bias")
    )
    ends, last = _ends(head, dims.vocab, dims.hidden), norm("pre_lm_head_layernorm.weight")
    return FusionHead(ends, fusion, family.layers, last, WeightMap(family.rules + _RULES, _PREFIXES, IGNORED))


def _ends(head: HeadBuild, rows: int, size: int) -> VocabularyEnds:
    embed: Embedding | SharedEmbedding = SharedEmbedding(head.target)
    lm_head: DraftLMHead | SharedLMHead = SharedLMHead(head.target)
    if head.has("embed_tokens.weight", "model.embed_tokens.weight"):
        head.check_vocabulary(rows)
        embed = Embedding(head.build, rows, size)
    if head.has("lm_head.weight"):
        head.check_vocabulary(rows)
        lm_head = DraftLMHead(head.build, rows, size, known=head.target.vocab_size)
    return VocabularyEnds(embed, lm_head, head.all_ids())

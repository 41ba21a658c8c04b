"""Modules for multi-token prediction, inside the target's own checkpoint: a layer of its family over both projected.

| as in | tensors |
|---|---|
| DeepSeek V3, GLM 4.5 | `model.layers.N.` after the N of the model: `enorm`, `hnorm`, `eh_proj`, `shared_head` |
| Qwen3-Next | `mtp.`: `pre_fc_norm_embedding`, `pre_fc_norm_hidden`, `fc`, `layers.0`, `norm` |
| MiMo | `model.mtp_layers.0.`: `token_layernorm`, `hidden_layernorm`, `input_proj`, `final_layernorm` |

Of several modules the first drafts again and again.
"""

from __future__ import annotations

from dataclasses import dataclass

from cadence.config.hf import HFConfig
from cadence.core.errors import ConfigError
from cadence.models.dims import read_dims
from cadence.models.heads.family_layers import family_layers, moved
from cadence.models.heads.fusion import Fusion, FusionHead, fusion_rules
from cadence.models.heads.head_build import FIELD, HeadBuild
from cadence.models.heads.vocabulary_ends import DraftLMHead, SharedEmbedding, SharedLMHead, VocabularyEnds
from cadence.models.layers.embedding import Embedding
from cadence.models.layers.norm import RMSNorm
from cadence.models.llama import IGNORED
from cadence.models.weight_map import Rule, WeightMap


@dataclass(frozen=True, slots=True)
class MTPLayout:
    """Names in a checkpoint; `{n}` is the number of the model's own layers."""

    module: str  # what all of them begin with
    layer: str  # what those of the decoder layer begin with
    fusion: str
    embed_norm: str
    hidden_norm: str
    norm: str
    embed: str
    lm_head: str
    embed_first: bool = True  # of the projected halves
    feeds_normed: bool = True

    def name(self, place: str, num_layers: int) -> str:
        return place.format(n=num_layers)


_LAYERS = "model.layers.{n}."
LAYOUTS = (
    MTPLayout(
        module=_LAYERS,
        layer=_LAYERS,
        fusion=_LAYERS + "eh_proj",
        embed_norm=_LAYERS + "enorm",
        hidden_norm=_LAYERS + "hnorm",
        norm=_LAYERS + "shared_head.norm",
        embed=_LAYERS + "embed_tokens",
        lm_head=_LAYERS + "shared_head.head",
        feeds_normed=False,
    ),
    MTPLayout(
        module="mtp.",
        layer="mtp.layers.0.",
        fusion="mtp.fc",
        embed_norm="mtp.pre_fc_norm_embedding",
        hidden_norm="mtp.pre_fc_norm_hidden",
        norm="mtp.norm",
        embed="mtp.embed_tokens",
        lm_head="mtp.lm_head",
    ),
    MTPLayout(
        module="model.mtp_layers.0.",
        layer="model.mtp_layers.0.",
        fusion="model.mtp_layers.0.input_proj",
        embed_norm="model.mtp_layers.0.token_layernorm",
        hidden_norm="model.mtp_layers.0.hidden_layernorm",
        norm="model.mtp_layers.0.final_layernorm",
        embed="model.mtp_layers.0.embed_tokens",
        lm_head="model.mtp_layers.0.lm_head",
        embed_first=False,
    ),
)


def mtp_prefixes(hf: HFConfig) -> tuple[str, ...]:
    """What names of tensors begin with that are not the model's own but its modules'."""
    first = hf.get("num_hidden_layers") or 0
    after = range(first, first + (hf.get("num_nextn_predict_layers") or 0))
    return ("mtp.", "model.mtp_layers.", *(f"model.layers.{layer}." for layer in after))


def build_mtp(hf: HFConfig, head: HeadBuild) -> FusionHead:
    """hf: the target's configuration."""
    build, count = head.build, len(head.target.layers)
    layout = next((each for each in LAYOUTS if head.has(each.name(each.fusion, count) + ".weight")), None)
    if layout is None:
        raise ConfigError(f"{head.where}: no module for multi-token prediction among its tensors", FIELD)
    dims = read_dims(hf)
    family = family_layers(hf, hf.architecture, build, num_layers=1)

    def norm() -> RMSNorm:
        return RMSNorm(build, dims.hidden, dims.eps)

    fusion_bias = head.has(layout.name(layout.fusion, count) + ".bias")
    fusion = Fusion(build, dims.hidden, norm(), norm(), bias=fusion_bias)
    places = {name: layout.name(getattr(layout, name), count) for name in ("embed", "lm_head")}
    ends = _ends(head, places["embed"], places["lm_head"])
    rules = tuple(moved(rule, layout.name(layout.layer, count), "layers.0.") for rule in family.rules)
    weights = WeightMap(rules + _rules(layout, count), (), IGNORED)
    return FusionHead(ends, fusion, family.layers, norm(), weights, feeds_normed=layout.feeds_normed)


def _rules(layout: MTPLayout, count: int) -> tuple[Rule, ...]:
    targets = {
        "embed_norm": "fusion.embed_norm",
        "hidden_norm": "fusion.hidden_norm",
        "norm": "norm",
        "embed": "embed",
        "lm_head": "lm_head",
    }
    plain = [Rule(layout.name(getattr(layout, name), count) + ".*", f"{to}.*") for name, to in targets.items()]
    return (*fusion_rules(layout.name(layout.fusion, count), embed_first=layout.embed_first), *plain)


def _ends(head: HeadBuild, embed_name: str, lm_head_name: str) -> VocabularyEnds:
    """Modules that carry the model's embedding or head once more have the same sizes."""
    rows, size = head.target.vocab_size, head.hidden
    embed: Embedding | SharedEmbedding = SharedEmbedding(head.target)
    lm_head: DraftLMHead | SharedLMHead = SharedLMHead(head.target)
    if head.has(embed_name + ".weight"):
        embed = Embedding(head.build, rows, size)
    if head.has(lm_head_name + ".weight"):
        lm_head = DraftLMHead(head.build, rows, size, known=rows)
    return VocabularyEnds(embed, lm_head, head.all_ids())

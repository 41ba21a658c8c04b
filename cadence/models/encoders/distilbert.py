"""DistilBERT: BERT with half its layers and no types of text."""

from __future__ import annotations

from cadence.config.hf import HFConfig
from cadence.core.pooled.pooling import CLASSIFY
from cadence.models.encoder import EncoderDims, EncoderModel, EncoderParts
from cadence.models.encoders.bert import (
    FILLS_WORDS,
    IGNORED,
    TOKEN_RULES,
    post_norm_parts,
    text_rules,
    text_scores,
    token_scores,
)
from cadence.models.interface.build import BuildContext, ConfigView, WithDefaults
from cadence.models.layers.embedding import NoTable
from cadence.models.weight_map import Rule, WeightMap

_RULES = (
    Rule("embeddings.word_embeddings.*", "embed.tokens.*"),
    Rule("embeddings.position_embeddings.*", "embed.places.*"),
    Rule("embeddings.LayerNorm.*", "embed.norm.*"),
    Rule("transformer.layer.*.attention.q_lin.*", "layers.*.attn.qkv.*", part="q"),
    Rule("transformer.layer.*.attention.k_lin.*", "layers.*.attn.qkv.*", part="k"),
    Rule("transformer.layer.*.attention.v_lin.*", "layers.*.attn.qkv.*", part="v"),
    Rule("transformer.layer.*.attention.out_lin.*", "layers.*.attn.out.*"),
    Rule("transformer.layer.*.sa_layer_norm.*", "layers.*.attn_norm.*"),
    Rule("transformer.layer.*.ffn.lin1.*", "layers.*.mlp.up.*"),
    Rule("transformer.layer.*.ffn.lin2.*", "layers.*.mlp.down.*"),
    Rule("transformer.layer.*.output_layer_norm.*", "layers.*.mlp_norm.*"),
)
_PREFIXES = (("", "distilbert."),)
_EPS = 1e-12
_DEFAULTS = {"max_position_embeddings": 512, "activation": "gelu"}


class DistilBertModel(EncoderModel):
    weights = WeightMap(_RULES, _PREFIXES, (*IGNORED, "vocab_**", *FILLS_WORDS))

    def __init__(self, hf: ConfigView, build: BuildContext) -> None:
        super().__init__(_parts(hf, build))


class DistilBertForSequenceClassification(EncoderModel):
    weights = WeightMap((*_RULES, *text_rules("pre_classifier", "classifier")), _PREFIXES, IGNORED)

    def __init__(self, hf: HFConfig, build: BuildContext) -> None:
        super().__init__(_parts(hf, build), {CLASSIFY: text_scores(hf, build, "relu")})


class DistilBertForTokenClassification(EncoderModel):
    weights = WeightMap((*_RULES, *TOKEN_RULES), _PREFIXES, IGNORED)

    def __init__(self, hf: HFConfig, build: BuildContext) -> None:
        super().__init__(_parts(hf, build), {CLASSIFY: token_scores(hf, build)})


def _parts(hf: ConfigView, build: BuildContext) -> EncoderParts:
    hf = WithDefaults(hf, _DEFAULTS)
    dims = EncoderDims(
        vocab=hf["vocab_size"],
        hidden=hf["dim"],
        intermediate=hf["hidden_dim"],
        layers=hf["n_layers"],
        heads=hf["n_heads"],
        positions=hf["max_position_embeddings"],
        eps=_EPS,
        activation=hf["activation"],
    )
    return post_norm_parts(build, dims, NoTable())

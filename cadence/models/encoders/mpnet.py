"""MPNet: BERT without types of text, whose layers add to a score what the distance from query to key is worth."""

from __future__ import annotations

from cadence.config.hf import HFConfig
from cadence.core.pooled.pooling import CLASSIFY
from cadence.models.encoder import EncoderModel, EncoderParts
from cadence.models.encoders.bert import (
    BLOCK_RULES,
    EMBEDDING_RULES,
    FILLS_WORDS,
    IGNORED,
    POOLER,
    TOKEN_RULES,
    bert_parts,
    text_scores,
    token_scores,
)
from cadence.models.encoders.roberta import DENSE_RULES
from cadence.models.interface.build import BuildContext, ConfigView, WithChanges
from cadence.models.layers.distances import Distances
from cadence.models.weight_map import Rule, WeightMap

_RULES = (
    *EMBEDDING_RULES,
    *BLOCK_RULES,
    Rule("encoder.layer.*.attention.attn.q.*", "layers.*.attn.qkv.*", part="q"),
    Rule("encoder.layer.*.attention.attn.k.*", "layers.*.attn.qkv.*", part="k"),
    Rule("encoder.layer.*.attention.attn.v.*", "layers.*.attn.qkv.*", part="v"),
    Rule("encoder.layer.*.attention.attn.o.*", "layers.*.attn.out.*"),
    Rule("encoder.layer.*.attention.LayerNorm.*", "layers.*.attn_norm.*"),
    Rule("encoder.relative_attention_bias.*", "distances.*"),
)
_PREFIXES = (("", "mpnet."),)
_FIRST_POSITION = 2  # after that of padding, whatever the config says of it
_FAR = 128  # tokens: from here on all distances are in one bucket


class MPNetModel(EncoderModel):
    weights = WeightMap(_RULES, _PREFIXES, (*IGNORED, POOLER, *FILLS_WORDS))

    def __init__(self, hf: ConfigView, build: BuildContext) -> None:
        distances = _distances(hf, build)
        super().__init__(_parts(hf, build, distances))
        self.distances = distances


class MPNetForSequenceClassification(EncoderModel):
    weights = WeightMap((*_RULES, *DENSE_RULES), _PREFIXES, (*IGNORED, POOLER))

    def __init__(self, hf: HFConfig, build: BuildContext) -> None:
        distances, head = _distances(hf, build), text_scores(hf, build)
        super().__init__(_parts(hf, build, distances), {CLASSIFY: head})
        self.distances = distances


class MPNetForTokenClassification(EncoderModel):
    weights = WeightMap((*_RULES, *TOKEN_RULES), _PREFIXES, (*IGNORED, POOLER))

    def __init__(self, hf: HFConfig, build: BuildContext) -> None:
        distances, head = _distances(hf, build), token_scores(hf, build)
        super().__init__(_parts(hf, build, distances), {CLASSIFY: head})
        self.distances = distances


def _distances(hf: ConfigView, build: BuildContext) -> Distances:
    return Distances(build, hf.get("relative_attention_num_buckets", 32), hf["num_attention_heads"], _FAR)


def _parts(hf: ConfigView, build: BuildContext, distances: Distances) -> EncoderParts:
    return bert_parts(WithChanges(hf, {"type_vocab_size": 0}), build, _FIRST_POSITION, distances.bias)

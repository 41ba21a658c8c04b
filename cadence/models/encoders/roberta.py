"""RoBERTa, XLM-R and CamemBERT: BERT whose positions begin after that of padding, and whose scores are made of the
first token's state itself."""

from __future__ import annotations

from cadence.config.hf import HFConfig
from cadence.core.pooled.pooling import CLASSIFY
from cadence.gguf import FIRST_POSITION_FIELD
from cadence.models.encoder import EncoderModel, EncoderParts
from cadence.models.encoders.bert import (
    BERT_RULES,
    FILLS_WORDS,
    IGNORED,
    POOLER,
    TOKEN_RULES,
    bert_parts,
    text_rules,
    text_scores,
    token_scores,
)
from cadence.models.interface.build import BuildContext, ConfigView
from cadence.models.weight_map import WeightMap

DENSE_RULES = text_rules("classifier.dense", "classifier.out_proj")
_PREFIXES = (("", "roberta."),)


class RobertaModel(EncoderModel):
    weights = WeightMap(BERT_RULES, _PREFIXES, (*IGNORED, POOLER, *FILLS_WORDS))

    def __init__(self, hf: ConfigView, build: BuildContext) -> None:
        super().__init__(_parts(hf, build))


class RobertaForSequenceClassification(EncoderModel):
    weights = WeightMap((*BERT_RULES, *DENSE_RULES), _PREFIXES, (*IGNORED, POOLER))

    def __init__(self, hf: HFConfig, build: BuildContext) -> None:
        super().__init__(_parts(hf, build), {CLASSIFY: text_scores(hf, build)})


class RobertaForTokenClassification(EncoderModel):
    weights = WeightMap((*BERT_RULES, *TOKEN_RULES), _PREFIXES, (*IGNORED, POOLER))

    def __init__(self, hf: HFConfig, build: BuildContext) -> None:
        super().__init__(_parts(hf, build), {CLASSIFY: token_scores(hf, build)})


def _parts(hf: ConfigView, build: BuildContext) -> EncoderParts:
    padding = hf.get("pad_token_id")
    first = hf.get(FIRST_POSITION_FIELD, 2 if padding is None else padding + 1)
    return bert_parts(hf, build, offset=first)

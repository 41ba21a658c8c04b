"""RoBERTa, XLM-R and CamemBERT: BERT whose positions begin after that of padding, and whose scores are made of the
first token's state itself."""

from __future__ import annotations

from cadence.core.pooling import CLASSIFY
from cadence.models.encoder import EncoderModel, EncoderParts
from cadence.models.encoders.bert import BERT_RULES, FILLS_WORDS, IGNORED, POOLER, TOKEN_RULES, bert_parts
from cadence.models.interface.build import BuildContext, ConfigView
from cadence.models.layers.classifier import Tanh, dense_classifier, plain_classifier
from cadence.models.weight_map import Rule, WeightMap

DENSE_RULES = (
    Rule("classifier.dense.*", "heads.classify.dense.*"),
    Rule("classifier.out_proj.*", "heads.classify.out.*"),
)
_PREFIXES = (("", "roberta."),)


class RobertaModel(EncoderModel):
    weights = WeightMap(BERT_RULES, _PREFIXES, (*IGNORED, POOLER, *FILLS_WORDS))

    def __init__(self, hf: ConfigView, build: BuildContext) -> None:
        super().__init__(_parts(hf, build))


class RobertaForSequenceClassification(EncoderModel):
    weights = WeightMap((*BERT_RULES, *DENSE_RULES), _PREFIXES, (*IGNORED, POOLER))

    def __init__(self, hf: ConfigView, build: BuildContext) -> None:
        super().__init__(_parts(hf, build), {CLASSIFY: dense_classifier(hf, build, hf["hidden_size"], Tanh())})


class RobertaForTokenClassification(EncoderModel):
    weights = WeightMap((*BERT_RULES, *TOKEN_RULES), _PREFIXES, (*IGNORED, POOLER))

    def __init__(self, hf: ConfigView, build: BuildContext) -> None:
        super().__init__(_parts(hf, build), {CLASSIFY: plain_classifier(hf, build, hf["hidden_size"])})


def _parts(hf: ConfigView, build: BuildContext) -> EncoderParts:
    padding = hf.get("pad_token_id")
    return bert_parts(hf, build, offset=2 if padding is None else padding + 1)

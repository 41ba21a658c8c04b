"""What a model is served as, and what it can make of hidden states: by its architecture, by the files of
sentence-transformers beside it, and by what the user asked, each over the ones before.

| model | writes tokens | tasks |
|---|---|---|
| XForCausalLM | yes | embed, token_embed |
| XForCausalLM with sentence-transformers' files, or `runner=pooling` | no | embed, token_embed |
| XModel | no | embed, token_embed |
| XForSequenceClassification, `convert=classify` | no | classify, token_classify; score where there is one label |
| XForTokenClassification, reward models, `convert=reward` | no | token_classify |
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from cadence.config.args import EngineArgs
from cadence.config.files.fields import wrong
from cadence.config.head_shape import ONE_EACH, TWO_WAY, embedding_size, made_from, read_labels
from cadence.config.hf import HFConfig
from cadence.config.pooling.pooler_options import AskedRunner, PoolerOptions, asked_runner
from cadence.config.pooling.pooling_config import PoolingConfig
from cadence.core.errors import ConfigError
from cadence.core.model.model_heads import ModelHead
from cadence.core.pooled.pooling import ALL, CLS, LAST, MEAN, NO_TAG, NONE, SIGMOID, SOFTMAX, STEP

_CONVERTED = {"embed": ModelHead.NONE, "classify": ModelHead.SCORES, "reward": ModelHead.TOKEN_LOGITS}
_EMBEDS, _TOKEN_SCORES = ("embed", "token_embed"), ("token_classify",)
_BY_TOKEN = (ModelHead.TOKEN_SCORES, ModelHead.REWARD, ModelHead.PROCESS_REWARD, ModelHead.TOKEN_LOGITS)
_ACTIVATIONS = {"Identity": NONE, "Sigmoid": SIGMOID, "Softmax": SOFTMAX}  # of torch, as cross-encoders name them


def served_as(hf: HFConfig, args: EngineArgs) -> HFConfig:
    """With the head that it is built with; ConfigError where it cannot be what was asked."""
    asked = asked_runner(args.runner, args.convert, args.task or PoolerOptions.read(args.pooler_config).task)
    if hf.get("is_encoder_decoder") and (asked.runner == "pooling" or asked.convert in _CONVERTED):
        name = "runner" if asked.runner == "pooling" else "convert"
        raise ConfigError(f"{name}={getattr(asked, name)}: {hf.architecture} has an encoder, and gives texts", name)
    both_ways, head = bool(hf.get("use_bidirectional_attention")), hf.head
    embeds = both_ways or asked.runner == "pooling" or (asked.runner == "auto" and hf.sentence.found)
    if hf.head is ModelHead.LOGITS and embeds:
        head = ModelHead.NONE
    if asked.convert in _CONVERTED:
        head = _converted(hf, asked)
    if asked.runner == "generate" and head is not ModelHead.LOGITS:
        raise ConfigError(f"runner=generate: {hf.architecture} generates no text", "runner")
    if head is ModelHead.SCORES and hf.get("classifier_from_token"):
        _check_from_tokens(hf)
    return replace(hf, head=head)


def _converted(hf: HFConfig, asked: AskedRunner) -> ModelHead:
    """A model that is what was asked stays as it is."""
    head = _CONVERTED[asked.convert]
    if head is ModelHead.NONE and hf.head is ModelHead.OWN and not is_classifier(hf):
        return hf.head
    if head is not ModelHead.NONE and (hf.head.makes_scores or (hf.head is ModelHead.OWN and is_classifier(hf))):
        return hf.head
    if hf.head is ModelHead.OWN:
        raise ConfigError(f"convert={asked.convert}: {hf.architecture} is served as it is", "convert")
    return head


def is_classifier(hf: HFConfig) -> bool:
    """Of a model whose class has a head of its own."""
    return hf.architecture.endswith(("ForSequenceClassification", "ForTokenClassification"))


def _check_from_tokens(hf: HFConfig) -> None:
    """A head that is made of the logits of some tokens: the difference of two, or one score each."""
    names, method = hf["classifier_from_token"], made_from(hf)
    if method not in (TWO_WAY, ONE_EACH):
        raise wrong(hf.source, "method", f"{TWO_WAY} or {ONE_EACH}", method)
    if method == TWO_WAY and len(names) != 2:
        raise wrong(hf.source, "classifier_from_token", "two tokens: the one of no, the one of yes", names)


def resolve_pooling(args: EngineArgs, hf: HFConfig) -> PoolingConfig:
    """hf: as `served_as` gave it"""
    if hf.get("is_encoder_decoder"):
        return PoolingConfig(tasks=())
    options = PoolerOptions.read(args.pooler_config)
    both_ways = hf.head is ModelHead.OWN or bool(hf.get("use_bidirectional_attention"))
    scores = hf.head.makes_scores or (hf.head is ModelHead.OWN and is_classifier(hf))
    config = _scoring(hf, options) if scores else _embedding(hf, options, both_ways)
    first = tuple(task for task in config.tasks if task == options.task)
    rest = tuple(task for task in config.tasks if task not in first)
    return replace(config, tasks=first + rest, generates=hf.head is ModelHead.LOGITS, sees_both_ways=both_ways)


def _embedding(hf: HFConfig, options: PoolerOptions, both_ways: bool) -> PoolingConfig:
    sentence, size = hf.sentence, embedding_size(hf)
    usual = CLS if hf.head is ModelHead.OWN else MEAN if both_ways else LAST
    dimensions = tuple(hf.get("matryoshka_dimensions") or ())
    any_dimension = bool(hf.get("is_matryoshka")) and not dimensions
    normalize = sentence.normalize or not sentence.found
    config = PoolingConfig(
        tasks=_EMBEDS,
        embedding=options.of_text or sentence.pooling or usual,
        normalize=normalize if options.use_activation is None else options.use_activation,
        size=size,
        dimensions=tuple(each for each in dimensions if each < size),
        any_dimension=any_dimension,
        prompts=sentence.prompts,
        default_prompt=dict(sentence.prompts).get(sentence.default_prompt, ""),
        lower_case=sentence.lower_case,
        similarity=sentence.similarity,
    )
    return replace(config, cut=_cut(config, options.dimensions))


def _cut(config: PoolingConfig, asked: int | None) -> int:
    if asked is None or asked == config.size:
        return 0
    if asked in config.dimensions or (config.any_dimension and asked < config.size):
        return asked
    message = f"pooler_config.dimensions={asked}: this model makes embeddings of {config.size} entries"
    raise ConfigError(message, "pooler_config")


def _scoring(hf: HFConfig, options: PoolerOptions) -> PoolingConfig:
    by_token = hf.head in _BY_TOKEN or hf.architecture.endswith("ForTokenClassification")
    labels = () if hf.head is ModelHead.TOKEN_LOGITS else read_labels(hf)
    returned = tuple(options.returned_token_ids or ())
    if hf.head is ModelHead.TOKEN_LOGITS and not returned:
        message = (
            f"convert=reward: of {hf.architecture} pooler_config.returned_token_ids must name tokens of the vocabulary"
        )
        raise ConfigError(message, "pooler_config")
    one = ("score",) if len(labels) == 1 else ()
    return PoolingConfig(
        tasks=_TOKEN_SCORES if by_token else ("classify", "token_classify", *one),
        scoring=options.of_text or str(hf.get("classifier_pooling") or (CLS if hf.head is ModelHead.OWN else LAST)),
        by_token=options.by_token or (STEP if options.step_tag_id is not None else ALL),
        activates=options.use_activation is not False,
        activation=_activation(hf, len(labels or returned)),
        score_activation=_score_activation(hf, len(labels)),
        labels=labels,
        step_tag=NO_TAG if options.step_tag_id is None else options.step_tag_id,
        returned=returned,
    )


def _activation(hf: HFConfig, count: int) -> str:
    """Of so many scores, as transformers' losses take them."""
    known = {"regression": NONE, "multi_label_classification": SIGMOID}
    return known.get(hf.get("problem_type") or "", SIGMOID if count < 2 else SOFTMAX)


def _score_activation(hf: HFConfig, count: int) -> str:
    """Of a cross-encoder: what its files name."""
    section = hf.get("sentence_transformers")
    named: Any = section.get("activation_fn") if isinstance(section, dict) else None
    named = named or hf.get("sbert_ce_default_activation_function")
    if named is None:
        return SIGMOID if count < 2 else SOFTMAX
    name = str(named)[:256].rpartition(".")[2]
    if name not in _ACTIVATIONS:
        raise wrong(hf.source, "activation_fn", f"one of {', '.join(_ACTIVATIONS)}", named)
    return _ACTIVATIONS[name]

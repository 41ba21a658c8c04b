"""Models with other heads than logits: the decoder of a family without its own, and what was asked for in its place.

| head | in a checkpoint | what it is |
|---|---|---|
| none | | hidden states as they are |
| scores | `score.weight` | a linear map |
| token scores | `score.*`, in GPT-2 `classifier.*` | a linear map with a bias |
| reward | `score.0.*`, `score.2.*` | two, and a ReLU between them |
| token logits | as the family has it | the logits themselves |

Dense modules of sentence-transformers are a head of embeddings.
"""

from __future__ import annotations

from dataclasses import replace

from cadence.config.head_shape import hidden_size, num_labels
from cadence.config.hf import HFConfig
from cadence.core.errors import ConfigError
from cadence.core.model.model_heads import ModelHead
from cadence.core.model.model_registry import class_path
from cadence.core.pooled.pooling import CLASSIFY, EMBED
from cadence.models.decoder import DecoderLM
from cadence.models.interface.build import BuildContext, WithChanges
from cadence.models.interface.stage import Absent
from cadence.models.layers.stacked_head import MapShape, StackedHead
from cadence.models.registry import AnyModel, class_through_transformers, imported, model_class
from cadence.models.weight_map import Rule, WeightMap

_KEEPS_LOGITS = (ModelHead.LOGITS, ModelHead.TOKEN_LOGITS, ModelHead.OWN)
_REWARD = (ModelHead.REWARD, ModelHead.PROCESS_REWARD)
_OTHER_HEADS = ("score.**", "classifier.**")  # of a checkpoint whose own head is not asked for


def dense_name(index: int) -> str:
    """Under which the weights of a Dense module are known among those of its model."""
    return f"sentence_transformers.dense.{index}"


def headed_model(hf: HFConfig, build: BuildContext) -> AnyModel:
    model = _decoder(hf, build)
    if hf.head is ModelHead.TOKEN_LOGITS:
        model.generates, model.heads[CLASSIFY] = False, model.lm_head
    elif hf.head is not ModelHead.OWN and hf.head is not ModelHead.LOGITS:
        _replace_logits(model, hf, build)
    if hf.sentence.dense:
        _add_dense(model, hf, build)
    return model


def _decoder(hf: HFConfig, build: BuildContext) -> AnyModel:
    if hf.implementation.through_transformers:
        return class_through_transformers()(hf, build)
    # A tied head has no memory of its own.
    view = hf if hf.head in _KEEPS_LOGITS else WithChanges(hf, {"tie_word_embeddings": True})
    path = hf.implementation.class_path or class_path(hf.family)
    return (imported(path) if path else model_class(hf.family))(view, build)


def _replace_logits(model: DecoderLM, hf: HFConfig, build: BuildContext) -> None:
    model.generates, model.lm_head = False, Absent()
    model.weights = _without_logits(model.weights)
    if hf.head is not ModelHead.NONE:
        shapes, sources = _score_shapes(hf)
        _add_head(model, CLASSIFY, StackedHead(build, shapes), sources)
    else:
        model.weights = replace(model.weights, ignored=(*model.weights.ignored, *_OTHER_HEADS))


def _without_logits(weights: WeightMap) -> WeightMap:
    """A checkpoint may have a head all the same."""
    rules = tuple(rule for rule in weights.rules if not rule.target.startswith("lm_head."))
    names = [rule.source for rule in weights.rules if rule.target.startswith("lm_head.")]
    others = [
        other + name[len(usual) :]
        for usual, other in weights.other_prefixes
        for name in names
        if name.startswith(usual)
    ]
    return replace(weights, rules=rules, ignored=(*weights.ignored, *names, *others))


def _score_shapes(hf: HFConfig) -> tuple[list[MapShape], list[str]]:
    """Maps, and what a checkpoint calls each."""
    size, labels = hidden_size(hf), num_labels(hf)
    if hf.head in _REWARD:
        return [MapShape(size, size, True, "relu"), MapShape(size, labels, True)], ["score.0", "score.2"]
    by_token = hf.head is ModelHead.TOKEN_SCORES
    own = "classifier" if by_token and hf.family == "GPT2LMHeadModel" else "score"
    return [MapShape(size, labels, bias=by_token)], [own]


def _add_dense(model: AnyModel, hf: HFConfig, build: BuildContext) -> None:
    size, shapes = hidden_size(hf), []
    for module in hf.sentence.dense:
        if module.inputs != size:
            message = f"{module.folder}: in_features is {module.inputs}, and vectors before it have {size} entries"
            raise ConfigError(message, "in_features")
        shapes.append(MapShape(module.inputs, module.outputs, module.bias, module.activation))
        size = module.outputs
    _add_head(model, EMBED, StackedHead(build, shapes), [dense_name(index) for index in range(len(shapes))])


def _add_head(model: AnyModel, name: str, head: StackedHead, sources: list[str]) -> None:
    """sources: names of its maps in a checkpoint"""
    rules = tuple(Rule(f"{source}.*", f"heads.{name}.maps.{index}.*") for index, source in enumerate(sources))
    model.heads[name] = head
    model.weights = replace(model.weights, rules=(*model.weights.rules, *rules))

"""The language model inside one that also sees: which decoder it is, and how checkpoints name its weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from cadence.core.errors import ConfigError
from cadence.models.decoder import DecoderLM, DecoderParts
from cadence.models.gemma3 import Gemma3ForCausalLM
from cadence.models.interface.build import BuildContext, ConfigView
from cadence.models.layers.tower import Tower
from cadence.models.llama import LlamaForCausalLM
from cadence.models.mistral import MistralForCausalLM
from cadence.models.qwen2 import Qwen2ForCausalLM
from cadence.models.weight_map import Rule, WeightMap

_DECODERS: dict[str, type[DecoderLM]] = {  # by `model_type` of the section
    "llama": LlamaForCausalLM,
    "mistral": MistralForCausalLM,
    "qwen2": Qwen2ForCausalLM,
    "gemma3_text": Gemma3ForCausalLM,
}

# How checkpoints begin the names of a language model's weights: as releases of transformers have written them.
_PREFIXES = (
    ("model.", "language_model.model."),
    ("model.", "model.language_model."),
    ("model.", "model.text_model."),
    ("lm_head.", "language_model.lm_head."),
)


def language_model(hf: ConfigView, build: BuildContext) -> DecoderLM:
    """hf: with the fields of its `text_config` beside its own"""
    kind = hf["text_config"].get("model_type", "llama")
    if kind not in _DECODERS:
        raise ConfigError(f"a language model of type {kind!r} is not supported", field="text_config")
    return _DECODERS[kind](hf, build)


def seeing_parts(text: DecoderLM, tower: Tower) -> DecoderParts:
    return DecoderParts(embed=text.embed, layers=list(text.layers), norm=text.norm, lm_head=text.lm_head, tower=tower)


def seeing_weights(
    text: WeightMap, rules: Sequence[Rule], prefixes: Sequence[tuple[str, str]] = (), ignored: Sequence[str] = ()
) -> WeightMap:
    """rules: of the tower, whose targets begin with `tower.`; prefixes, ignored: as `WeightMap` has them"""
    return replace(
        text,
        rules=(*text.rules, *rules),
        other_prefixes=(*_PREFIXES, *text.other_prefixes, *prefixes),
        ignored=(*text.ignored, *ignored),
    )

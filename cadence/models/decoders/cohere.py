"""Cohere Command-R: attention and a gated block side by side after one layer norm without bias, neighbours that turn
together, a factor on the logits. Command-R+ norms queries and keys, each head by its own weight."""

from __future__ import annotations

from collections.abc import Callable

from cadence.core.errors import ConfigError
from cadence.models.decoder import DecoderLM, DecoderParts, ParallelLayer
from cadence.models.dims import Scales, decoder_parts, layer_windows, read_dims, types_in_turn
from cadence.models.interface.build import BuildContext, ConfigView, WithDefaults
from cadence.models.layers.attention import Attention, AttentionSpec
from cadence.models.layers.head_norms import HeadNormedAttention
from cadence.models.layers.mlp import GatedMLP
from cadence.models.layers.norm import LayerNorm
from cadence.models.layers.positions.rope_config import read_rope
from cadence.models.layers.positions.rotary import NoRotary, Rotary
from cadence.models.llama import ATTENTION_RULES, IGNORED, MLP_RULES, OUTER_RULES, PREFIXES
from cadence.models.weight_map import Rule, WeightMap

COHERE_WEIGHTS = WeightMap(
    (
        *OUTER_RULES,
        *ATTENTION_RULES,
        *MLP_RULES,
        Rule("model.layers.*.input_layernorm.*", "layers.*.attn_norm.*"),
        Rule("model.layers.*.self_attn.q_norm.*", "layers.*.attn.q_norm.*"),
        Rule("model.layers.*.self_attn.k_norm.*", "layers.*.attn.k_norm.*"),
    ),
    PREFIXES,
    IGNORED,
)

_DEFAULTS = {"layer_norm_eps": 1e-5, "logit_scale": 0.0625, "tie_word_embeddings": True}


class CohereForCausalLM(DecoderLM):
    weights = COHERE_WEIGHTS

    def __init__(self, hf: ConfigView, build: BuildContext) -> None:
        super().__init__(_decoder(hf, build, lambda layers: [(0, True)] * layers))


class Cohere2ForCausalLM(DecoderLM):
    """Command-R7B and Command A: layers with a window rotate, those that see everything do not."""

    weights = COHERE_WEIGHTS

    def __init__(self, hf: ConfigView, build: BuildContext) -> None:
        super().__init__(_decoder(hf, build, lambda layers: _windows(hf, build, layers)))


def _windows(hf: ConfigView, build: BuildContext, layers: int) -> list[tuple[int, bool]]:
    types = hf.get("layer_types") or types_in_turn(layers, hf.get("sliding_window_pattern") or 4)
    windows = layer_windows(build, hf.get("sliding_window", 4096), types)
    return [(window, kind == "sliding_attention") for window, kind in zip(windows, types, strict=True)]


def _decoder(hf: ConfigView, build: BuildContext, layout: Callable[[int], list[tuple[int, bool]]]) -> DecoderParts:
    """layout: of so many layers, (window, whether it rotates) of each"""
    hf = WithDefaults(hf, _DEFAULTS)
    dims = read_dims(hf, "layer_norm_eps")
    rotary, unrotated = Rotary(build, read_rope(hf, dims.head_dim), neighbours=True), NoRotary()
    places, bias = layout(dims.layers), bool(hf.get("attention_bias", False))

    def norm() -> LayerNorm:
        return LayerNorm(build, dims.hidden, dims.eps, bias=False)

    def attention(index: int) -> Attention:
        window, turns = places[index]
        spec = AttentionSpec(dims.hidden, dims.shape(window), qkv_bias=bias, out_bias=bias)
        if hf.get("use_qk_norm"):
            return HeadNormedAttention(build, index, spec, rotary if turns else unrotated, dims.eps)
        return Attention(build, index, spec, rotary if turns else unrotated)

    def layer(index: int) -> ParallelLayer:
        return ParallelLayer(attention(index), GatedMLP(build, dims.hidden, dims.intermediate, dims.activation), norm())

    return decoder_parts(build, dims, layer, norm(), scales=Scales(logits=_logit_scale(hf)))


def _logit_scale(hf: ConfigView) -> float:
    scale = hf["logit_scale"]
    if not isinstance(scale, int | float):
        raise ConfigError(f"logit_scale {scale!r} is not a number", field="logit_scale")
    return float(scale)

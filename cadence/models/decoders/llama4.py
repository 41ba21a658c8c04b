"""Llama 4, text: layers that rotate see their chunk of the text, every fourth sees all of it and does not rotate; in
feed-forward blocks, all or some, experts, one for each token, beside one that all tokens pass."""

from __future__ import annotations

from dataclasses import dataclass, replace

from cadence.core.errors import ConfigError
from cadence.kernels.interface.expert_ops import Routing
from cadence.models.decoder import DecoderLM, FeedForward
from cadence.models.dims import Dims, gated_decoder, read_dims
from cadence.models.interface.build import BuildContext, ConfigView, WithDefaults
from cadence.models.layers.attention import Attention, AttentionSpec, HeadNorms
from cadence.models.layers.experts import ExpertsSpec
from cadence.models.layers.mlp import GatedMLP
from cadence.models.layers.norm import UnscaledNorm
from cadence.models.layers.positions.rope_config import RopeConfig, read_rope
from cadence.models.layers.positions.rotary import NoRotary, Rotary
from cadence.models.layers.shared_experts import SharedExperts
from cadence.models.layers.tempered_attention import Temperatures, TemperedAttention
from cadence.models.llama import ATTENTION_RULES, IGNORED, NORM_RULES, OUTER_RULES, PREFIXES
from cadence.models.weight_map import Rule, WeightMap

_BLOCK, _EXPERT = "model.layers.*.feed_forward", "layers.*.mlp.routed.experts.*"
_APART = "apart"  # of GGUF files and quantised checkpoints: a matrix of its own for each expert
_CHUNKED, _FULL = "chunked_attention", "full_attention"
_THETA = 500_000.0

_DENSE_RULES = (
    Rule(f"{_BLOCK}.gate_proj.*", "layers.*.mlp.gate_up.*", part="gate"),
    Rule(f"{_BLOCK}.up_proj.*", "layers.*.mlp.gate_up.*", part="up"),
    Rule(f"{_BLOCK}.down_proj.*", "layers.*.mlp.down.*"),
)
_EXPERT_RULES = (
    Rule(f"{_BLOCK}.router.*", "layers.*.mlp.routed.router.*"),
    Rule(f"{_BLOCK}.experts.*.gate_up_proj", f"{_EXPERT}.gate_up.weight", transpose=True),
    Rule(f"{_BLOCK}.experts.*.down_proj", f"{_EXPERT}.down.weight", transpose=True),
    Rule(f"{_BLOCK}.experts.*.gate_proj.*", f"{_EXPERT}.gate_up.*", part="gate", form=_APART),
    Rule(f"{_BLOCK}.experts.*.up_proj.*", f"{_EXPERT}.gate_up.*", part="up", form=_APART),
    Rule(f"{_BLOCK}.experts.*.down_proj.*", f"{_EXPERT}.down.*", form=_APART),
    Rule(f"{_BLOCK}.shared_expert.gate_proj.*", "layers.*.mlp.shared.gate_up.*", part="gate"),
    Rule(f"{_BLOCK}.shared_expert.up_proj.*", "layers.*.mlp.shared.gate_up.*", part="up"),
    Rule(f"{_BLOCK}.shared_expert.down_proj.*", "layers.*.mlp.shared.down.*"),
)
_STACKS = ("**.feed_forward.experts.gate_up_proj", "**.feed_forward.experts.down_proj")
_OTHER_PREFIXES = (("model.", "language_model.model."), ("lm_head.", "language_model.lm_head."))
_TOWER = ("**vision_model.**", "**multi_modal_projector.**")

_DEFAULTS = {
    "rms_norm_eps": 1e-5,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size_mlp": 16_384,
    "num_experts_per_tok": 1,
    "num_local_experts": 16,
    "interleave_moe_layer_step": 1,
    "no_rope_layer_interval": 4,
    "attention_chunk_size": 8192,
    "use_qk_norm": True,
    "attn_temperature_tuning": True,
    "floor_scale": 8192,
    "attn_scale": 0.1,
}


class Llama4ForCausalLM(DecoderLM):
    """Of folders with a tower the text alone: the tower stays in the files."""

    weights = WeightMap(
        OUTER_RULES + ATTENTION_RULES + NORM_RULES + _DENSE_RULES + _EXPERT_RULES,
        (*PREFIXES, *_OTHER_PREFIXES),
        (*IGNORED, *_TOWER),
        stacks=_STACKS,
    )

    def __init__(self, hf: ConfigView, build: BuildContext) -> None:
        hf = WithDefaults(hf, _DEFAULTS)
        dims = read_dims(hf)
        layers, with_experts = _layers(hf, build, dims.layers), _with_experts(hf, dims.layers)
        rotary, unrotated = Rotary(build, _rope(hf, dims), neighbours=True), NoRotary()
        temperatures = Temperatures(build, hf["floor_scale"], hf["attn_scale"])
        bias, experts = bool(hf.get("attention_bias", False)), _experts(hf, dims)

        def attention(index: int) -> Attention:
            layer = layers[index]
            spec = AttentionSpec(dims.hidden, dims.shape(chunk=layer.chunk), qkv_bias=bias, out_bias=bias)
            if not layer.rotates and hf["attn_temperature_tuning"]:
                return TemperedAttention(build, index, spec, temperatures)
            norm = UnscaledNorm(build, dims.head_dim, dims.eps)  # the same before a rotation as after it
            norms = HeadNorms(norm, norm) if layer.rotates and hf["use_qk_norm"] else None
            return Attention(build, index, spec, rotary if layer.rotates else unrotated, norms)

        def feed_forward(index: int) -> FeedForward:
            if index in with_experts:
                return SharedExperts(build, experts, dims.intermediate, gated=False)
            return GatedMLP(build, dims.hidden, hf["intermediate_size_mlp"], dims.activation)

        super().__init__(gated_decoder(build, dims, attention, feed_forward))


@dataclass(frozen=True, slots=True)
class _Layer:
    rotates: bool
    chunk: int  # 0 = sees all


def _layers(hf: ConfigView, build: BuildContext, count: int) -> list[_Layer]:
    """Layers that rotate, all but every fourth unless the file says which, have chunks unless it says which."""
    interval = hf["no_rope_layer_interval"]
    rotates = hf.get("no_rope_layers") or [(index + 1) % interval != 0 for index in range(count)]
    kinds = hf.get("layer_types") or [_CHUNKED if turns else _FULL for turns in rotates]
    if len(rotates) < count:
        message = f"no_rope_layers names {len(rotates)} layers where num_hidden_layers is {count}"
        raise ConfigError(message, field="no_rope_layers")
    if unknown := set(kinds) - {_CHUNKED, _FULL}:
        raise ConfigError(f"layer types {sorted(unknown)} are not supported", field="layer_types")
    chunk = build.window(hf["attention_chunk_size"] or None)
    return [_Layer(bool(rotates[index]), chunk if kinds[index] == _CHUNKED else 0) for index in range(count)]


def _rope(hf: ConfigView, dims: Dims) -> RopeConfig:
    """A norm after the rotation undoes factors on it."""
    rope = read_rope(hf, dims.head_dim, theta=_THETA)
    return replace(rope, scaling=rope.scaling | {"attention_factor": 1.0}) if hf["use_qk_norm"] else rope


def _with_experts(hf: ConfigView, layers: int) -> set[int]:
    step, named = hf["interleave_moe_layer_step"], hf.get("moe_layers")
    return set(named if named is not None else range(step - 1, layers, step))


def _experts(hf: ConfigView, dims: Dims) -> ExpertsSpec:
    routing = Routing(hf["num_experts_per_tok"], renormalise=False, rounded=True, sigmoid=True)
    return ExpertsSpec(
        hf["num_local_experts"], dims.hidden, dims.intermediate, dims.activation, routing, weigh_inputs=True
    )

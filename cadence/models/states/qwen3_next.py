"""Qwen3-Next: gated delta nets, every fourth layer attention with a gate, experts beside one that all tokens pass."""

from __future__ import annotations

from dataclasses import replace

from cadence.kernels.interface.expert_ops import Routing
from cadence.models.decoder import DecoderLM, FeedForward
from cadence.models.dims import Dims, gated_decoder, read_dims
from cadence.models.interface.build import BuildContext, ConfigView, WithDefaults
from cadence.models.layers.attention import AttentionSpec, HeadNorms
from cadence.models.layers.experts import ExpertsSpec
from cadence.models.layers.gated_attention import GatedAttention
from cadence.models.layers.mixer import Mixer
from cadence.models.layers.mlp import GatedMLP
from cadence.models.layers.norm import RMSNorm
from cadence.models.layers.positions.rope_config import read_rope
from cadence.models.layers.positions.rotary import Rotary
from cadence.models.layers.shared_experts import SharedExperts
from cadence.models.layers.states.gated_delta import GatedDelta, GatedDeltaSpec
from cadence.models.llama import ATTENTION_RULES, IGNORED, MLP_RULES, NORM_RULES, OUTER_RULES
from cadence.models.states.shared import conv_activation, layer_kinds, places_of
from cadence.models.weight_map import Rule, WeightMap

_DELTA, _MLP = "model.layers.*.linear_attn", "model.layers.*.mlp"
_NORM_TARGETS = ("norm.*", "layers.*.attn_norm.*", "layers.*.mlp_norm.*")  # whose weights are stored without a 1

_ATTENTION_RULES = (
    *(replace(rule, part="q+gate") if rule.part == "q" else rule for rule in ATTENTION_RULES),
    Rule("model.layers.*.self_attn.q_norm.*", "layers.*.attn.q_norm.*", add=1.0),
    Rule("model.layers.*.self_attn.k_norm.*", "layers.*.attn.k_norm.*", add=1.0),
)
_NORMS = tuple(replace(rule, add=1.0) if rule.target in _NORM_TARGETS else rule for rule in OUTER_RULES + NORM_RULES)
_IN = "layers.*.attn.in_proj.*"
_DELTA_RULES = (
    Rule(f"{_DELTA}.in_proj_qkvz.*", _IN, part="q+k+v+z"),
    Rule(f"{_DELTA}.in_proj_ba.*", _IN, part="b+a"),
    Rule(f"{_DELTA}.in_proj_qkv.*", _IN, part="q+k+v", form="split"),  # of GGUF files
    Rule(f"{_DELTA}.in_proj_z.*", _IN, part="z", form="split"),
    Rule(f"{_DELTA}.in_proj_ba.*", _IN, part="b+a", form="split"),
    Rule(f"{_DELTA}.conv1d.weight", "layers.*.attn.conv.weight", taps=True),
    Rule(f"{_DELTA}.A_log", "layers.*.attn.decay.log.weight"),
    Rule(f"{_DELTA}.dt_bias", "layers.*.attn.decay.dt_bias.weight"),
    Rule(f"{_DELTA}.norm.*", "layers.*.attn.norm.*"),
    Rule(f"{_DELTA}.out_proj.*", "layers.*.attn.out_proj.*"),
)
_EXPERT_RULES = (
    Rule(f"{_MLP}.gate.*", "layers.*.mlp.routed.router.*"),
    Rule(f"{_MLP}.experts.*.gate_proj.*", "layers.*.mlp.routed.experts.*.gate_up.*", part="gate"),
    Rule(f"{_MLP}.experts.*.up_proj.*", "layers.*.mlp.routed.experts.*.gate_up.*", part="up"),
    Rule(f"{_MLP}.experts.*.down_proj.*", "layers.*.mlp.routed.experts.*.down.*"),
    Rule(f"{_MLP}.shared_expert.gate_proj.*", "layers.*.mlp.shared.gate_up.*", part="gate"),
    Rule(f"{_MLP}.shared_expert.up_proj.*", "layers.*.mlp.shared.gate_up.*", part="up"),
    Rule(f"{_MLP}.shared_expert.down_proj.*", "layers.*.mlp.shared.down.*"),
    Rule(f"{_MLP}.shared_expert_gate.*", "layers.*.mlp.gate.*"),
)
_RULES = _NORMS + _ATTENTION_RULES + _DELTA_RULES + MLP_RULES + _EXPERT_RULES
_IGNORED = (*IGNORED, "mtp.**")

_DEFAULTS = {
    "num_key_value_heads": 2,
    "head_dim": 256,
    "partial_rotary_factor": 0.25,
    "full_attention_interval": 4,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "decoder_sparse_step": 1,
    "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
    "num_experts_per_tok": 10,
    "num_experts": 512,
    "norm_topk_prob": True,
}


class Qwen3NextForCausalLM(DecoderLM):
    weights = WeightMap(_RULES, ignored=_IGNORED)

    def __init__(self, hf: ConfigView, build: BuildContext) -> None:
        hf = WithDefaults(hf, _DEFAULTS)
        dims = read_dims(hf)
        attends = places_of(_attending(hf, dims.layers))
        rotary = Rotary(build, read_rope(hf, dims.head_dim))
        bias = bool(hf.get("attention_bias", False))
        attention = AttentionSpec(dims.hidden, dims.shape(), qkv_bias=bias, out_bias=bias)
        delta, experts = _delta(hf, dims), _experts(hf, dims)
        plain, step = hf.get("mlp_only_layers") or [], hf["decoder_sparse_step"]

        def mixer(index: int) -> Mixer:
            if index not in attends:
                return GatedDelta(build, delta)
            q, k = (RMSNorm(build, dims.head_dim, dims.eps, wide=True) for _ in range(2))
            return GatedAttention(build, attends[index], attention, rotary, HeadNorms(q, k))

        def feed_forward(index: int) -> FeedForward:
            if index in plain or (index + 1) % step or not experts.count:
                return GatedMLP(build, dims.hidden, dims.intermediate, dims.activation)
            return SharedExperts(build, experts, hf["shared_expert_intermediate_size"], gated=True)

        super().__init__(gated_decoder(build, dims, mixer, feed_forward, wide_norms=True))


def _attending(hf: ConfigView, layers: int) -> list[int]:
    kinds, interval = hf.get("layer_types"), hf["full_attention_interval"]
    if not kinds:
        return [index for index in range(layers) if (index + 1) % interval == 0]
    return [index for index, kind in enumerate(layer_kinds(kinds)[:layers]) if kind == "full_attention"]


def _delta(hf: ConfigView, dims: Dims) -> GatedDeltaSpec:
    conv_activation(hf)
    return GatedDeltaSpec(
        hidden=dims.hidden,
        key_heads=hf["linear_num_key_heads"],
        value_heads=hf["linear_num_value_heads"],
        key_dim=hf["linear_key_head_dim"],
        value_dim=hf["linear_value_head_dim"],
        taps=hf["linear_conv_kernel_dim"],
        eps=dims.eps,
    )


def _experts(hf: ConfigView, dims: Dims) -> ExpertsSpec:
    routing = Routing(hf["num_experts_per_tok"], renormalise=bool(hf["norm_topk_prob"]), rounded=True)
    count = hf.get("num_local_experts") or hf["num_experts"]  # newer files, all others
    return ExpertsSpec(count, dims.hidden, hf["moe_intermediate_size"], dims.activation, routing)

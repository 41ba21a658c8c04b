"""Qwen 3 with experts: the feed-forward blocks of most layers, as the file says, are experts of which each token takes
a few."""

from __future__ import annotations

from cadence.kernels.interface.expert_ops import Routing
from cadence.models.decoder import DecoderLM, FeedForward
from cadence.models.dims import gated_decoder, read_dims
from cadence.models.interface.build import BuildContext, ConfigView, WithDefaults
from cadence.models.layers.attention import Attention, AttentionSpec, HeadNorms
from cadence.models.layers.experts import Experts, ExpertsSpec
from cadence.models.layers.mlp import GatedMLP
from cadence.models.layers.norm import RMSNorm
from cadence.models.layers.positions.rope_config import read_rope
from cadence.models.layers.positions.rotary import Rotary
from cadence.models.llama import PREFIXES
from cadence.models.qwen3 import QWEN3_WEIGHTS
from cadence.models.weight_map import Rule, WeightMap

EXPERT_RULES = (
    Rule("model.layers.*.mlp.gate.*", "layers.*.mlp.router.*"),
    Rule("model.layers.*.mlp.experts.*.gate_proj.*", "layers.*.mlp.experts.*.gate_up.*", part="gate"),
    Rule("model.layers.*.mlp.experts.*.up_proj.*", "layers.*.mlp.experts.*.gate_up.*", part="up"),
    Rule("model.layers.*.mlp.experts.*.down_proj.*", "layers.*.mlp.experts.*.down.*"),
)

_DEFAULTS = {
    "num_key_value_heads": 4,
    "decoder_sparse_step": 1,
    "moe_intermediate_size": 768,
    "num_experts_per_tok": 8,
    "num_experts": 128,
    "norm_topk_prob": False,
}


class Qwen3MoeForCausalLM(DecoderLM):
    weights = WeightMap(QWEN3_WEIGHTS.rules + EXPERT_RULES, PREFIXES, QWEN3_WEIGHTS.ignored)

    def __init__(self, hf: ConfigView, build: BuildContext) -> None:
        hf = WithDefaults(hf, _DEFAULTS)
        dims = read_dims(hf)
        rotary = Rotary(build, read_rope(hf, dims.head_dim))
        window = build.window(hf.get("sliding_window", 4096) if hf.get("use_sliding_window", False) else None)
        bias = bool(hf.get("attention_bias", False))
        spec = AttentionSpec(dims.hidden, dims.shape(window), qkv_bias=bias, out_bias=bias)
        routing = Routing(hf["num_experts_per_tok"], renormalise=bool(hf["norm_topk_prob"]), rounded=True)
        count = hf.get("num_local_experts") or hf["num_experts"]  # newer files, all others
        experts = ExpertsSpec(count, dims.hidden, hf["moe_intermediate_size"], dims.activation, routing)
        plain, step = hf.get("mlp_only_layers") or [], hf["decoder_sparse_step"]

        def attention(index: int) -> Attention:
            norms = HeadNorms(RMSNorm(build, dims.head_dim, dims.eps), RMSNorm(build, dims.head_dim, dims.eps))
            return Attention(build, index, spec, rotary, norms)

        def feed_forward(index: int) -> FeedForward:
            if index in plain or (index + 1) % step:
                return GatedMLP(build, dims.hidden, dims.intermediate, dims.activation)
            return Experts(build, experts)

        super().__init__(gated_decoder(build, dims, attention, feed_forward))

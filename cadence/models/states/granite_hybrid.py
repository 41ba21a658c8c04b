"""Granite 4: layers of Mamba-2, some of attention; a feed-forward block for all tokens, with experts beside it or
without.

What a block adds to the stream is multiplied by one number everywhere. The stream is carried divided by it: what blocks
add is then added as it is, and a norm, to which the size of its input is nothing, only has another eps.
"""

from __future__ import annotations

from dataclasses import replace

from cadence.core.errors import ConfigError
from cadence.kernels.interface.expert_ops import Routing
from cadence.models.decoder import DecoderLM, FeedForward
from cadence.models.dims import Scales, gated_decoder, read_dims
from cadence.models.interface.build import BuildContext, ConfigView, WithDefaults
from cadence.models.layers.attention import Attention, AttentionSpec
from cadence.models.layers.experts import ExpertsSpec
from cadence.models.layers.mixer import Mixer
from cadence.models.layers.mlp import GatedMLP
from cadence.models.layers.positions.rope_config import read_rope
from cadence.models.layers.positions.rotary import NoRotary, Rotary
from cadence.models.layers.shared_experts import SharedExperts
from cadence.models.layers.states.mamba2 import Mamba2
from cadence.models.llama import ATTENTION_RULES, IGNORED, NORM_RULES, OUTER_RULES
from cadence.models.states.shared import layer_kinds, mamba2_rules, places_of, read_mamba2
from cadence.models.weight_map import Rule, WeightMap

_SHARED, _ROUTED = "model.layers.*.shared_mlp", "model.layers.*.block_sparse_moe"

_MLP_RULES = (
    Rule(f"{_SHARED}.input_linear.*", "layers.*.mlp.gate_up.*"),
    Rule(f"{_SHARED}.output_linear.*", "layers.*.mlp.down.*"),
    Rule(f"{_SHARED}.input_linear.*", "layers.*.mlp.shared.gate_up.*"),
    Rule(f"{_SHARED}.output_linear.*", "layers.*.mlp.shared.down.*"),
    Rule(f"{_ROUTED}.router.layer.*", "layers.*.mlp.routed.router.*"),
    Rule(f"{_ROUTED}.input_linear.*.*", "layers.*.mlp.routed.experts.*.gate_up.*"),
    Rule(f"{_ROUTED}.output_linear.*.*", "layers.*.mlp.routed.experts.*.down.*"),
)
_STACKS = (f"{_ROUTED}.input_linear.weight", f"{_ROUTED}.output_linear.weight")

_DEFAULTS = {
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "shared_intermediate_size": 1024,
    "embedding_multiplier": 1.0,
    "logits_scaling": 1.0,
    "residual_multiplier": 1.0,
    "attention_multiplier": 1.0,
    "mamba_n_heads": 128,
    "mamba_n_groups": 1,
    "mamba_d_state": 256,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
    "mamba_conv_bias": True,
    "mamba_proj_bias": False,
    "rms_norm_eps": 1e-6,
}


class GraniteMoeHybridForCausalLM(DecoderLM):
    weights = WeightMap(
        OUTER_RULES + ATTENTION_RULES + NORM_RULES + mamba2_rules("model.layers.*.mamba", "layers.*.attn") + _MLP_RULES,
        ignored=IGNORED,
        stacks=_STACKS,
    )

    def __init__(self, hf: ConfigView, build: BuildContext) -> None:
        hf = WithDefaults(hf, _DEFAULTS)
        dims, added = read_dims(hf), hf["residual_multiplier"]
        kinds = layer_kinds(hf.get("layer_types") or hf.get("layers_block_type") or ["mamba"] * dims.layers)
        attends = places_of([index for index, kind in enumerate(kinds) if kind == "full_attention"])
        rotary = _rotary(hf, build, dims.head_dim)
        bias = bool(hf.get("attention_bias", False))
        shape = dims.shape(scale=hf["attention_multiplier"])
        attention = AttentionSpec(dims.hidden, shape, qkv_bias=bias, out_bias=bias)
        mamba = read_mamba2(hf, dims, int(hf["mamba_expand"] * dims.hidden))

        def mixer(index: int) -> Mixer:
            if index in attends:
                return Attention(build, attends[index], attention, rotary)
            return Mamba2(build, mamba)

        def feed_forward(index: int) -> FeedForward:
            shared = hf["shared_intermediate_size"]
            if not hf["num_local_experts"]:
                return GatedMLP(build, dims.hidden, shared, dims.activation)
            routing = Routing(hf["num_experts_per_tok"], renormalise=True, rounded=True)
            experts = ExpertsSpec(hf["num_local_experts"], dims.hidden, dims.intermediate, dims.activation, routing)
            return SharedExperts(build, experts, shared, gated=False)

        embed = (hf["embedding_multiplier"] or 1.0) / added
        scales = Scales(embed=embed, exact=True, stream=added, logits=1.0 / hf["logits_scaling"])
        dims = replace(dims, eps=dims.eps / added**2)
        super().__init__(gated_decoder(build, dims, mixer, feed_forward, scales=scales))


def _rotary(hf: ConfigView, build: BuildContext, head_dim: int) -> Rotary | NoRotary:
    kind = hf.get("position_embedding_type")
    if kind not in (None, "nope", "rope"):
        raise ConfigError(f"position_embedding_type {kind!r} is neither rope nor nope", field="position_embedding_type")
    return Rotary(build, read_rope(hf, head_dim)) if kind == "rope" else NoRotary()

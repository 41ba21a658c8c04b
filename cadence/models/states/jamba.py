"""Jamba: layers of Mamba, every few of attention without positions, and every few with experts."""

from __future__ import annotations

from cadence.kernels.interface.expert_ops import Routing
from cadence.models.decoder import DecoderLM, FeedForward
from cadence.models.dims import gated_decoder, read_dims
from cadence.models.interface.build import BuildContext, ConfigView, WithDefaults
from cadence.models.layers.attention import Attention, AttentionSpec
from cadence.models.layers.experts import Experts, ExpertsSpec
from cadence.models.layers.mixer import Mixer
from cadence.models.layers.mlp import GatedMLP
from cadence.models.layers.positions.rotary import NoRotary
from cadence.models.layers.states.mamba import InnerNorms, Mamba, MambaSpec, time_step_rank
from cadence.models.llama import ATTENTION_RULES
from cadence.models.states.shared import conv_activation, mamba_rules, places_of
from cadence.models.weight_map import Rule, WeightMap

_MLP = "model.layers.*.feed_forward"

OUTER_RULES = (
    Rule("model.embed_tokens.*", "embed.*"),
    Rule("model.layers.*.input_layernorm.*", "layers.*.attn_norm.*"),
    Rule("model.layers.*.pre_ff_layernorm.*", "layers.*.mlp_norm.*"),
    Rule("model.final_layernorm.*", "norm.*"),
    Rule("lm_head.*", "lm_head.*"),
)

MLP_RULES = (
    Rule(f"{_MLP}.gate_proj.*", "layers.*.mlp.gate_up.*", part="gate"),
    Rule(f"{_MLP}.up_proj.*", "layers.*.mlp.gate_up.*", part="up"),
    Rule(f"{_MLP}.down_proj.*", "layers.*.mlp.down.*"),
)

_EXPERT_RULES = (
    Rule(f"{_MLP}.router.*", "layers.*.mlp.router.*"),
    Rule(f"{_MLP}.experts.*.gate_proj.*", "layers.*.mlp.experts.*.gate_up.*", part="gate"),
    Rule(f"{_MLP}.experts.*.up_proj.*", "layers.*.mlp.experts.*.gate_up.*", part="up"),
    Rule(f"{_MLP}.experts.*.down_proj.*", "layers.*.mlp.experts.*.down.*"),
)

_DEFAULTS = {
    "num_key_value_heads": 8,
    "num_experts_per_tok": 2,
    "num_experts": 16,
    "expert_layer_period": 2,
    "expert_layer_offset": 1,
    "attn_layer_period": 8,
    "attn_layer_offset": 4,
    "mamba_d_state": 16,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
    "mamba_conv_bias": True,
    "mamba_proj_bias": False,
}


class JambaForCausalLM(DecoderLM):
    weights = WeightMap(
        OUTER_RULES + ATTENTION_RULES + mamba_rules("model.layers.*.mamba", "layers.*.attn") + MLP_RULES + _EXPERT_RULES
    )

    def __init__(self, hf: ConfigView, build: BuildContext) -> None:
        hf = WithDefaults(hf, _DEFAULTS)
        dims = read_dims(hf)
        attends = places_of(_every(hf, "attn_layer", dims.layers))
        routed = _every(hf, "expert_layer", dims.layers) if hf["num_experts"] > 1 else []
        attention, mamba = AttentionSpec(dims.hidden, dims.shape()), _mamba(hf, dims.hidden)
        routing = Routing(hf["num_experts_per_tok"], renormalise=False, rounded=True)
        experts = ExpertsSpec(hf["num_experts"], dims.hidden, dims.intermediate, dims.activation, routing)

        def mixer(index: int) -> Mixer:
            if index in attends:
                return Attention(build, attends[index], attention, NoRotary())
            return Mamba(build, mamba)

        def feed_forward(index: int) -> FeedForward:
            if index in routed:
                return Experts(build, experts)
            return GatedMLP(build, dims.hidden, dims.intermediate, dims.activation)

        super().__init__(gated_decoder(build, dims, mixer, feed_forward))


def _every(hf: ConfigView, name: str, layers: int) -> list[int]:
    period, offset = hf[f"{name}_period"], hf[f"{name}_offset"]
    return [index for index in range(layers) if index % period == offset]


def _mamba(hf: ConfigView, hidden: int) -> MambaSpec:
    conv_activation(hf)
    return MambaSpec(
        hidden=hidden,
        width=int(hf["mamba_expand"] * hidden),
        states=hf["mamba_d_state"],
        rank=time_step_rank(hf, "mamba_dt_rank"),
        taps=hf["mamba_d_conv"],
        norms=InnerNorms.SCALED,
        eps=hf.get("rms_norm_eps", 1e-6),
        bias=bool(hf["mamba_proj_bias"]),
        conv_bias=bool(hf["mamba_conv_bias"]),
    )

"""Mixtral: a Mistral whose feed-forward blocks are experts, two of which each token takes."""

from __future__ import annotations

from cadence.kernels.interface.expert_ops import Routing
from cadence.models.decoder import DecoderLM
from cadence.models.dims import gated_decoder, read_dims
from cadence.models.interface.build import BuildContext, ConfigView, WithDefaults
from cadence.models.layers.attention import Attention, AttentionSpec
from cadence.models.layers.experts import Experts, ExpertsSpec
from cadence.models.layers.positions.rope_config import read_rope
from cadence.models.layers.positions.rotary import Rotary
from cadence.models.llama import ATTENTION_RULES, IGNORED, NORM_RULES, OUTER_RULES, PREFIXES
from cadence.models.weight_map import Rule, WeightMap

_BLOCK = "model.layers.*.block_sparse_moe"

EXPERT_RULES = (
    Rule(f"{_BLOCK}.gate.*", "layers.*.mlp.router.*"),
    Rule(f"{_BLOCK}.experts.*.w1.*", "layers.*.mlp.experts.*.gate_up.*", part="gate"),
    Rule(f"{_BLOCK}.experts.*.w3.*", "layers.*.mlp.experts.*.gate_up.*", part="up"),
    Rule(f"{_BLOCK}.experts.*.w2.*", "layers.*.mlp.experts.*.down.*"),
)

_DEFAULTS = {"num_key_value_heads": 8, "rms_norm_eps": 1e-5, "num_experts_per_tok": 2, "num_local_experts": 8}
_THETA = 1_000_000.0


class MixtralForCausalLM(DecoderLM):
    weights = WeightMap(OUTER_RULES + ATTENTION_RULES + NORM_RULES + EXPERT_RULES, PREFIXES, IGNORED)

    def __init__(self, hf: ConfigView, build: BuildContext) -> None:
        hf = WithDefaults(hf, _DEFAULTS)
        dims = read_dims(hf)
        rotary = Rotary(build, read_rope(hf, dims.head_dim, theta=_THETA))
        spec = AttentionSpec(dims.hidden, dims.shape(build.window(hf.get("sliding_window"))))
        routing = Routing(hf["num_experts_per_tok"], renormalise=True, rounded=False)
        experts = ExpertsSpec(hf["num_local_experts"], dims.hidden, dims.intermediate, dims.activation, routing)
        super().__init__(
            gated_decoder(
                build,
                dims,
                lambda index: Attention(build, index, spec, rotary),
                lambda index: Experts(build, experts),
            )
        )

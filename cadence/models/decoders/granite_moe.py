"""Granite 3 with experts in place of feed-forward blocks, whose matrices a checkpoint has in one tensor."""

from __future__ import annotations

from cadence.kernels.interface.expert_ops import Routing
from cadence.models.decoder import DecoderLM
from cadence.models.decoders.granite import granite_decoder
from cadence.models.dims import read_dims
from cadence.models.interface.build import BuildContext, ConfigView
from cadence.models.layers.experts import Experts, ExpertsSpec
from cadence.models.llama import ATTENTION_RULES, IGNORED, NORM_RULES, OUTER_RULES, PREFIXES
from cadence.models.weight_map import Rule, WeightMap

_BLOCK = "model.layers.*.block_sparse_moe"

_EXPERT_RULES = (
    Rule(f"{_BLOCK}.router.layer.*", "layers.*.mlp.router.*"),
    Rule(f"{_BLOCK}.input_linear.*.*", "layers.*.mlp.experts.*.gate_up.*"),
    Rule(f"{_BLOCK}.output_linear.*.*", "layers.*.mlp.experts.*.down.*"),
)
_STACKS = (f"{_BLOCK}.input_linear.weight", f"{_BLOCK}.output_linear.weight")


class GraniteMoeForCausalLM(DecoderLM):
    weights = WeightMap(OUTER_RULES + ATTENTION_RULES + NORM_RULES + _EXPERT_RULES, PREFIXES, IGNORED, stacks=_STACKS)

    def __init__(self, hf: ConfigView, build: BuildContext) -> None:
        dims = read_dims(hf)
        routing = Routing(hf.get("num_experts_per_tok", 2), renormalise=True, rounded=True)
        count = hf.get("num_local_experts", 8)
        experts = ExpertsSpec(count, dims.hidden, dims.intermediate, dims.activation, routing)
        super().__init__(granite_decoder(hf, build, dims, lambda index: Experts(build, experts)))

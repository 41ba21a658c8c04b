"""Duet: attention and a gated block side by side, both of one norm of the stream; their sum joins it."""

from __future__ import annotations

from cadence.models.decoder import DecoderLM, ParallelLayer
from cadence.models.dims import decoder_parts, read_dims
from cadence.models.interface.build import BuildContext, ConfigView
from cadence.models.layers.attention import Attention, AttentionSpec
from cadence.models.layers.mlp import GatedMLP
from cadence.models.layers.norm import RMSNorm
from cadence.models.layers.positions.rope_config import read_rope
from cadence.models.layers.positions.rotary import Rotary
from cadence.models.llama import ATTENTION_RULES, MLP_RULES, OUTER_RULES, PREFIXES
from cadence.models.weight_map import Rule, WeightMap

DUET_WEIGHTS = WeightMap(
    (*OUTER_RULES, *ATTENTION_RULES, *MLP_RULES, Rule("model.layers.*.norm.*", "layers.*.attn_norm.*")), PREFIXES
)


class DuetForCausalLM(DecoderLM):
    weights = DUET_WEIGHTS

    def __init__(self, hf: ConfigView, build: BuildContext) -> None:
        dims = read_dims(hf)
        rotary = Rotary(build, read_rope(hf, dims.head_dim))
        spec = AttentionSpec(dims.hidden, dims.shape())

        def norm() -> RMSNorm:
            return RMSNorm(build, dims.hidden, dims.eps)

        def layer(index: int) -> ParallelLayer:
            mlp = GatedMLP(build, dims.hidden, dims.intermediate, dims.activation)
            return ParallelLayer(Attention(build, index, spec, rotary), mlp, norm())

        super().__init__(decoder_parts(build, dims, layer, norm()))

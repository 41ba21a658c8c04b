"""Phi-3: a Llama whose checkpoint holds fused projections; long contexts by longrope, heads rotated in part."""

from __future__ import annotations

from dataclasses import replace

from cadence.models.decoder import DecoderLM
from cadence.models.dims import gated_decoder, read_dims
from cadence.models.interface.build import BuildContext, ConfigView, WithDefaults
from cadence.models.layers.attention import Attention, AttentionSpec
from cadence.models.layers.positions.rope_config import RopeConfig, read_rope
from cadence.models.layers.positions.rotary import Rotary
from cadence.models.llama import NORM_RULES, OUTER_RULES, PREFIXES
from cadence.models.weight_map import Rule, WeightMap

PHI3_WEIGHTS = WeightMap(
    (
        *OUTER_RULES,
        *NORM_RULES,
        Rule("model.layers.*.self_attn.qkv_proj.*", "layers.*.attn.qkv.*"),
        Rule("model.layers.*.self_attn.o_proj.*", "layers.*.attn.out.*"),
        Rule("model.layers.*.mlp.gate_up_proj.*", "layers.*.mlp.gate_up.*"),
        Rule("model.layers.*.mlp.down_proj.*", "layers.*.mlp.down.*"),
    ),
    PREFIXES,
    ("**.rotary_emb.inv_freq",),
)

_DEFAULTS = {"rms_norm_eps": 1e-5, "original_max_position_embeddings": 4096}


class Phi3ForCausalLM(DecoderLM):
    weights = PHI3_WEIGHTS

    def __init__(self, hf: ConfigView, build: BuildContext) -> None:
        hf = WithDefaults(hf, _DEFAULTS)
        dims = read_dims(hf)
        rotary = Rotary(build, _rope(hf, dims.head_dim))
        spec = AttentionSpec(dims.hidden, dims.shape(build.window(hf.get("sliding_window"))))
        super().__init__(gated_decoder(build, dims, lambda index: Attention(build, index, spec, rotary)))


def _rope(hf: ConfigView, head_dim: int) -> RopeConfig:
    """Early Phi-3 files call longrope "su" or "yarn"."""
    rope = read_rope(hf, head_dim)
    if rope.kind != "yarn":
        return rope
    return replace(rope, kind="longrope", original_positions=hf["original_max_position_embeddings"])

"""GLM-4: neighbours turn together, in the first half of each head; gate and up are one tensor. The later ones
(`Glm4ForCausalLM`) have norms on both sides of every block."""

from __future__ import annotations

from collections.abc import Callable

from cadence.models.decoder import DecoderLM, SandwichLayer
from cadence.models.dims import Dims, decoder_parts, gated_decoder, read_dims
from cadence.models.interface.build import BuildContext, ConfigView, WithDefaults
from cadence.models.layers.attention import Attention, AttentionSpec
from cadence.models.layers.mlp import GatedMLP
from cadence.models.layers.norm import RMSNorm
from cadence.models.layers.positions.rope_config import read_rope
from cadence.models.layers.positions.rotary import Rotary
from cadence.models.llama import ATTENTION_RULES, IGNORED, NORM_RULES, OUTER_RULES, PREFIXES
from cadence.models.weight_map import Rule, WeightMap

_MLP_RULES = (
    Rule("model.layers.*.mlp.gate_up_proj.*", "layers.*.mlp.gate_up.*"),
    Rule("model.layers.*.mlp.down_proj.*", "layers.*.mlp.down.*"),
)
_SANDWICH_RULES = (
    Rule("model.layers.*.post_self_attn_layernorm.*", "layers.*.attn_post_norm.*"),
    Rule("model.layers.*.post_mlp_layernorm.*", "layers.*.mlp_post_norm.*"),
)
_RULES = (*OUTER_RULES, *ATTENTION_RULES, *_MLP_RULES, *NORM_RULES)

_DEFAULTS = {
    "head_dim": 128,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1.5625e-7,
    "partial_rotary_factor": 0.5,
    "attention_bias": True,
}


class GlmForCausalLM(DecoderLM):
    weights = WeightMap(_RULES, PREFIXES, IGNORED)

    def __init__(self, hf: ConfigView, build: BuildContext) -> None:
        dims, attention = _attention(hf, build)
        super().__init__(gated_decoder(build, dims, attention))


class Glm4ForCausalLM(DecoderLM):
    weights = WeightMap(_RULES + _SANDWICH_RULES, PREFIXES, IGNORED)

    def __init__(self, hf: ConfigView, build: BuildContext) -> None:
        dims, attention = _attention(hf, build)

        def norm() -> RMSNorm:
            return RMSNorm(build, dims.hidden, dims.eps)

        def layer(index: int) -> SandwichLayer:
            return SandwichLayer(
                attention(index),
                GatedMLP(build, dims.hidden, dims.intermediate, dims.activation),
                before=(norm(), norm()),
                after=(norm(), norm()),
            )

        super().__init__(decoder_parts(build, dims, layer, norm()))


def _attention(hf: ConfigView, build: BuildContext) -> tuple[Dims, Callable[[int], Attention]]:
    """Sizes, and the attention of each layer."""
    hf = WithDefaults(hf, _DEFAULTS)
    dims = read_dims(hf)
    rotary = Rotary(build, read_rope(hf, dims.head_dim), neighbours=True)
    spec = AttentionSpec(dims.hidden, dims.shape(), qkv_bias=bool(hf["attention_bias"]))
    return dims, lambda index: Attention(build, index, spec, rotary)

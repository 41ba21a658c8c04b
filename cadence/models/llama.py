"""Llama 1 to 3, and what is built like it (SmolLM2)."""

from __future__ import annotations

from cadence.models.decoder import DecoderLM
from cadence.models.dims import gated_decoder, read_dims
from cadence.models.interface.build import BuildContext, ConfigView
from cadence.models.layers.attention import Attention, AttentionSpec
from cadence.models.layers.positions.rope_config import read_rope
from cadence.models.layers.positions.rotary import Rotary
from cadence.models.weight_map import Rule, WeightMap

PREFIXES = (("model.", ""),)

OUTER_RULES = (
    Rule("model.embed_tokens.*", "embed.*"),
    Rule("model.norm.*", "norm.*"),
    Rule("lm_head.*", "lm_head.*"),
)

ATTENTION_RULES = (
    Rule("model.layers.*.self_attn.q_proj.*", "layers.*.attn.qkv.*", part="q"),
    Rule("model.layers.*.self_attn.k_proj.*", "layers.*.attn.qkv.*", part="k"),
    Rule("model.layers.*.self_attn.v_proj.*", "layers.*.attn.qkv.*", part="v"),
    Rule("model.layers.*.self_attn.o_proj.*", "layers.*.attn.out.*"),
)

MLP_RULES = (
    Rule("model.layers.*.mlp.gate_proj.*", "layers.*.mlp.gate_up.*", part="gate"),
    Rule("model.layers.*.mlp.up_proj.*", "layers.*.mlp.gate_up.*", part="up"),
    Rule("model.layers.*.mlp.down_proj.*", "layers.*.mlp.down.*"),
)

NORM_RULES = (
    Rule("model.layers.*.input_layernorm.*", "layers.*.attn_norm.*"),
    Rule("model.layers.*.post_attention_layernorm.*", "layers.*.mlp_norm.*"),
)

IGNORED = ("**.rotary_emb.inv_freq",)

LLAMA_WEIGHTS = WeightMap(OUTER_RULES + ATTENTION_RULES + MLP_RULES + NORM_RULES, PREFIXES, IGNORED)


class LlamaForCausalLM(DecoderLM):
    weights = LLAMA_WEIGHTS

    def __init__(self, hf: ConfigView, build: BuildContext) -> None:
        dims = read_dims(hf)
        rotary = Rotary(build, read_rope(hf, dims.head_dim))
        bias = bool(hf.get("attention_bias", False))
        spec = AttentionSpec(dims.hidden, dims.shape(), qkv_bias=bias, out_bias=bias)
        mlp_bias = bool(hf.get("mlp_bias", False))
        super().__init__(
            gated_decoder(build, dims, lambda index: Attention(build, index, spec, rotary), mlp_bias=mlp_bias)
        )

"""Qwen 3: queries and keys are normalised per head before rotation; biases only where the file asks for them."""

from __future__ import annotations

from cadence.models.decoder import DecoderLM
from cadence.models.dims import gated_decoder, read_dims
from cadence.models.interface.build import BuildContext, ConfigView, WithDefaults
from cadence.models.layers.attention import Attention, AttentionSpec, HeadNorms
from cadence.models.layers.norm import RMSNorm
from cadence.models.layers.positions.rope_config import read_rope
from cadence.models.layers.positions.rotary import Rotary
from cadence.models.llama import LLAMA_WEIGHTS, PREFIXES
from cadence.models.qwen2 import qwen_windows
from cadence.models.weight_map import Rule, WeightMap

QWEN3_WEIGHTS = WeightMap(
    (
        *LLAMA_WEIGHTS.rules,
        Rule("model.layers.*.self_attn.q_norm.*", "layers.*.attn.q_norm.*"),
        Rule("model.layers.*.self_attn.k_norm.*", "layers.*.attn.k_norm.*"),
    ),
    PREFIXES,
    LLAMA_WEIGHTS.ignored,
)


class Qwen3ForCausalLM(DecoderLM):
    weights = QWEN3_WEIGHTS

    def __init__(self, hf: ConfigView, build: BuildContext) -> None:
        dims = read_dims(WithDefaults(hf, {"head_dim": 128}))
        rotary = Rotary(build, read_rope(hf, dims.head_dim))
        windows = qwen_windows(hf, build, dims.layers)
        bias = bool(hf.get("attention_bias", False))

        def attention(index: int) -> Attention:
            spec = AttentionSpec(dims.hidden, dims.shape(windows[index]), qkv_bias=bias, out_bias=bias)
            norms = HeadNorms(RMSNorm(build, dims.head_dim, dims.eps), RMSNorm(build, dims.head_dim, dims.eps))
            return Attention(build, index, spec, rotary, norms)

        super().__init__(gated_decoder(build, dims, attention))

"""StableLM: a Llama with layer norms, a quarter of each head rotated; maybe with attention and feed-forward side by
side, or a norm of each head of queries and keys."""

from __future__ import annotations

from cadence.models.decoder import DecoderLM, ParallelLayer, PreNormLayer
from cadence.models.dims import decoder_parts, read_dims
from cadence.models.interface.build import BuildContext, ConfigView, WithDefaults
from cadence.models.layers.attention import Attention, AttentionSpec
from cadence.models.layers.head_norms import HeadNormedAttention
from cadence.models.layers.mlp import GatedMLP
from cadence.models.layers.norm import LayerNorm
from cadence.models.layers.positions.rope_config import read_rope
from cadence.models.layers.positions.rotary import Rotary
from cadence.models.llama import LLAMA_WEIGHTS, PREFIXES
from cadence.models.weight_map import Rule, WeightMap

STABLELM_WEIGHTS = WeightMap(
    (
        *LLAMA_WEIGHTS.rules,
        Rule("model.layers.*.self_attn.q_layernorm.norms.*.*", "layers.*.attn.q_norm.norms.*.*"),
        Rule("model.layers.*.self_attn.k_layernorm.norms.*.*", "layers.*.attn.k_norm.norms.*.*"),
    ),
    PREFIXES,
    LLAMA_WEIGHTS.ignored,
)

_DEFAULTS = {"layer_norm_eps": 1e-5, "num_key_value_heads": 32, "partial_rotary_factor": 0.25}


class StableLmForCausalLM(DecoderLM):
    weights = STABLELM_WEIGHTS

    def __init__(self, hf: ConfigView, build: BuildContext) -> None:
        hf = WithDefaults(hf, _DEFAULTS)
        dims = read_dims(hf, "layer_norm_eps")
        rotary = Rotary(build, read_rope(hf, dims.head_dim))
        spec = AttentionSpec(dims.hidden, dims.shape(), qkv_bias=bool(hf.get("use_qkv_bias", False)))

        def norm() -> LayerNorm:
            return LayerNorm(build, dims.hidden, dims.eps)

        def attention(index: int) -> Attention:
            if hf.get("qk_layernorm", False):
                return HeadNormedAttention(build, index, spec, rotary, dims.eps, apart=True)
            return Attention(build, index, spec, rotary)

        def layer(index: int) -> ParallelLayer | PreNormLayer:
            mlp = GatedMLP(build, dims.hidden, dims.intermediate, dims.activation)
            if hf.get("use_parallel_residual", False):
                return ParallelLayer(attention(index), mlp, norm())
            return PreNormLayer(attention(index), mlp, norm(), norm())

        super().__init__(decoder_parts(build, dims, layer, norm()))

"""Falcon 1 and 2: attention and feed-forward side by side, of one norm or of two, queries with their keys and values in
one matrix. (Falcon 3 is a Llama.) The first ones have ALiBi."""

from __future__ import annotations

from dataclasses import replace

from cadence.models.decoder import DecoderLM, ParallelLayer, PreNormLayer
from cadence.models.dims import Dims, decoder_parts, read_dims
from cadence.models.interface.build import BuildContext, ConfigView, WithChanges, WithDefaults
from cadence.models.layers.attention import Attention, AttentionSpec
from cadence.models.layers.mlp import PlainMLP
from cadence.models.layers.norm import LayerNorm
from cadence.models.layers.positions.alibi import alibi_bias
from cadence.models.layers.positions.rope_config import read_rope
from cadence.models.layers.positions.rotary import NoRotary, Rotary
from cadence.models.weight_map import Rule, WeightMap

_LAYER = "transformer.h.*"

FALCON_WEIGHTS = WeightMap(
    (
        Rule("transformer.word_embeddings.*", "embed.*"),
        Rule("transformer.ln_f.*", "norm.*"),
        Rule("lm_head.*", "lm_head.*"),
        Rule(f"{_LAYER}.self_attention.query_key_value.*", "layers.*.attn.qkv.*"),
        Rule(f"{_LAYER}.self_attention.dense.*", "layers.*.attn.out.*"),
        Rule(f"{_LAYER}.mlp.dense_h_to_4h.*", "layers.*.mlp.up.*"),
        Rule(f"{_LAYER}.mlp.dense_4h_to_h.*", "layers.*.mlp.down.*"),
        Rule(f"{_LAYER}.input_layernorm.*", "layers.*.attn_norm.*"),
        Rule(f"{_LAYER}.post_attention_layernorm.*", "layers.*.mlp_norm.*"),
    ),
    (("transformer.", ""),),
    other_ends=(
        (".input_layernorm.weight", ".ln_attn.weight"),
        (".input_layernorm.bias", ".ln_attn.bias"),
        (".post_attention_layernorm.weight", ".ln_mlp.weight"),
        (".post_attention_layernorm.bias", ".ln_mlp.bias"),
    ),
)

_DEFAULTS = {
    "layer_norm_epsilon": 1e-5,
    "activation": "gelu",
    "max_position_embeddings": 2048,
    "alibi": False,
    "new_decoder_architecture": False,
    "multi_query": True,
    "parallel_attn": True,
    "bias": False,
    "tie_word_embeddings": True,
}


class FalconForCausalLM(DecoderLM):
    weights = FALCON_WEIGHTS

    def __init__(self, hf: ConfigView, build: BuildContext) -> None:
        hf = WithDefaults(hf, _DEFAULTS)
        dims, newer, bias = _dims(hf), hf["new_decoder_architecture"], bool(hf["bias"])
        one_norm = (hf.get("num_ln_in_parallel_attn") or 2) == 1 if newer else bool(hf["parallel_attn"])
        shape = dims.shape()
        rotary: Rotary | NoRotary = NoRotary()
        if hf["alibi"]:
            shape = replace(shape, bias=alibi_bias(build, dims.heads, factor=shape.scale))
        else:
            rotary = Rotary(build, read_rope(hf, dims.head_dim))
        spec = AttentionSpec(dims.hidden, shape, qkv_bias=bias, out_bias=bias, grouped=True)

        def norm() -> LayerNorm:
            return LayerNorm(build, dims.hidden, dims.eps)

        def layer(index: int) -> ParallelLayer | PreNormLayer:
            mlp = PlainMLP(build, dims.hidden, dims.intermediate, dims.activation, bias=bias)
            attn = Attention(build, index, spec, rotary)
            if newer or hf["parallel_attn"]:
                return ParallelLayer(attn, mlp, norm(), None if one_norm else norm())
            return PreNormLayer(attn, mlp, norm(), norm())

        super().__init__(decoder_parts(build, dims, layer, norm()))


def _dims(hf: ConfigView) -> Dims:
    keys = hf.get("num_kv_heads") if hf["new_decoder_architecture"] or not hf["multi_query"] else 1
    own = {
        "num_key_value_heads": keys,
        "head_dim": None,
        "intermediate_size": hf.get("ffn_hidden_size") or 4 * hf["hidden_size"],
        "hidden_act": hf["activation"],
        "hidden_activation": None,
    }
    return read_dims(WithChanges(hf, own), "layer_norm_epsilon")

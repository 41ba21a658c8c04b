"""GPT-NeoX and Pythia: attention and feed-forward side by side, unless the file says otherwise, of layer norms with
bias."""

from __future__ import annotations

from cadence.models.decoder import DecoderLM, ParallelLayer, PreNormLayer
from cadence.models.dims import decoder_parts, read_dims
from cadence.models.interface.build import BuildContext, ConfigView, WithDefaults
from cadence.models.layers.attention import Attention, AttentionSpec
from cadence.models.layers.mlp import PlainMLP
from cadence.models.layers.norm import LayerNorm
from cadence.models.layers.positions.rope_config import read_rope
from cadence.models.layers.positions.rotary import Rotary
from cadence.models.weight_map import Rule, WeightMap

_LAYER = "gpt_neox.layers.*"

GPT_NEOX_WEIGHTS = WeightMap(
    (
        Rule("gpt_neox.embed_in.*", "embed.*"),
        Rule("gpt_neox.final_layer_norm.*", "norm.*"),
        Rule("embed_out.*", "lm_head.*"),
        Rule(f"{_LAYER}.attention.query_key_value.*", "layers.*.attn.qkv.*"),
        Rule(f"{_LAYER}.attention.dense.*", "layers.*.attn.out.*"),
        Rule(f"{_LAYER}.mlp.dense_h_to_4h.*", "layers.*.mlp.up.*"),
        Rule(f"{_LAYER}.mlp.dense_4h_to_h.*", "layers.*.mlp.down.*"),
        Rule(f"{_LAYER}.input_layernorm.*", "layers.*.attn_norm.*"),
        Rule(f"{_LAYER}.post_attention_layernorm.*", "layers.*.mlp_norm.*"),
    ),
    (("gpt_neox.", ""),),
    ("**.attention.bias", "**.attention.masked_bias", "**.rotary_emb.inv_freq"),
)

_DEFAULTS = {"hidden_act": "gelu", "layer_norm_eps": 1e-5}


class GPTNeoXForCausalLM(DecoderLM):
    weights = GPT_NEOX_WEIGHTS

    def __init__(self, hf: ConfigView, build: BuildContext) -> None:
        dims = read_dims(WithDefaults(hf, _DEFAULTS), "layer_norm_eps")
        partial = WithDefaults(hf, {"partial_rotary_factor": hf.get("rotary_pct", 0.25)})
        rotary = Rotary(build, read_rope(partial, dims.head_dim, theta=hf.get("rotary_emb_base", 10_000.0)))
        bias = bool(hf.get("attention_bias", True))
        spec = AttentionSpec(dims.hidden, dims.shape(), qkv_bias=bias, out_bias=bias, grouped=True)
        kind = ParallelLayer if hf.get("use_parallel_residual", True) else PreNormLayer

        def norm() -> LayerNorm:
            return LayerNorm(build, dims.hidden, dims.eps)

        def layer(index: int) -> ParallelLayer | PreNormLayer:
            mlp = PlainMLP(build, dims.hidden, dims.intermediate, dims.activation)
            return kind(Attention(build, index, spec, rotary), mlp, norm(), norm())

        super().__init__(decoder_parts(build, dims, layer, norm()))

"""StarCoder2: few heads of keys, a window, plain feed-forward blocks, layer norms and biases everywhere."""

from __future__ import annotations

from cadence.models.decoder import DecoderLM, PreNormLayer
from cadence.models.dims import decoder_parts, read_dims
from cadence.models.interface.build import BuildContext, ConfigView, WithDefaults
from cadence.models.layers.attention import Attention, AttentionSpec
from cadence.models.layers.mlp import PlainMLP
from cadence.models.layers.norm import LayerNorm
from cadence.models.layers.positions.rope_config import read_rope
from cadence.models.layers.positions.rotary import Rotary
from cadence.models.llama import ATTENTION_RULES, IGNORED, NORM_RULES, OUTER_RULES, PREFIXES
from cadence.models.weight_map import Rule, WeightMap

STARCODER2_WEIGHTS = WeightMap(
    (
        *OUTER_RULES,
        *ATTENTION_RULES,
        *NORM_RULES,
        Rule("model.layers.*.mlp.c_fc.*", "layers.*.mlp.up.*"),
        Rule("model.layers.*.mlp.c_proj.*", "layers.*.mlp.down.*"),
    ),
    PREFIXES,
    IGNORED,
)

_DEFAULTS = {
    "hidden_act": "gelu_pytorch_tanh",
    "num_key_value_heads": 2,
    "norm_epsilon": 1e-5,
    "tie_word_embeddings": True,
}


class Starcoder2ForCausalLM(DecoderLM):
    weights = STARCODER2_WEIGHTS

    def __init__(self, hf: ConfigView, build: BuildContext) -> None:
        hf = WithDefaults(hf, _DEFAULTS)
        dims = read_dims(hf, "norm_epsilon")
        rotary = Rotary(build, read_rope(hf, dims.head_dim))
        bias, shape = bool(hf.get("use_bias", True)), dims.shape(build.window(hf.get("sliding_window")))
        spec = AttentionSpec(dims.hidden, shape, qkv_bias=bias, out_bias=bias)

        def norm() -> LayerNorm:
            return LayerNorm(build, dims.hidden, dims.eps)

        def layer(index: int) -> PreNormLayer:
            mlp = PlainMLP(build, dims.hidden, dims.intermediate, dims.activation, bias=bias)
            return PreNormLayer(Attention(build, index, spec, rotary), mlp, norm(), norm())

        super().__init__(decoder_parts(build, dims, layer, norm()))

"""Gemma 1: a Llama with scaled embeddings, norms by 1 + w and feed-forward blocks gated by gelu."""

from __future__ import annotations

from cadence.core.errors import ConfigError
from cadence.models.decoder import DecoderLM, PreNormLayer
from cadence.models.dims import Scales, decoder_parts, read_dims
from cadence.models.gemma import gemma_norm
from cadence.models.interface.build import BuildContext, ConfigView, WithChanges, WithDefaults
from cadence.models.layers.attention import Attention, AttentionSpec
from cadence.models.layers.mlp import GatedMLP
from cadence.models.layers.positions.rope_config import read_rope
from cadence.models.layers.positions.rotary import Rotary
from cadence.models.llama import ATTENTION_RULES, IGNORED, MLP_RULES, PREFIXES
from cadence.models.weight_map import Rule, WeightMap

GEMMA1_WEIGHTS = WeightMap(
    (
        Rule("model.embed_tokens.*", "embed.*"),
        Rule("model.norm.*", "norm.*", add=1.0),
        Rule("lm_head.*", "lm_head.*"),
        *ATTENTION_RULES,
        *MLP_RULES,
        Rule("model.layers.*.input_layernorm.*", "layers.*.attn_norm.*", add=1.0),
        Rule("model.layers.*.post_attention_layernorm.*", "layers.*.mlp_norm.*", add=1.0),
    ),
    PREFIXES,
    IGNORED,
)

_DEFAULTS = {"head_dim": 256, "num_key_value_heads": 16, "tie_word_embeddings": True}
_GELU = {"hidden_act": "gelu_pytorch_tanh", "hidden_activation": None}  # whatever early files call it


class GemmaForCausalLM(DecoderLM):
    weights = GEMMA1_WEIGHTS

    def __init__(self, hf: ConfigView, build: BuildContext) -> None:
        hf = WithDefaults(hf, _DEFAULTS)
        if hf.get("use_bidirectional_attention"):
            raise ConfigError("a Gemma that sees both ways is not known", field="use_bidirectional_attention")
        dims = read_dims(WithChanges(hf, _GELU))
        rotary = Rotary(build, read_rope(hf, dims.head_dim))
        bias = bool(hf.get("attention_bias", False))
        spec = AttentionSpec(dims.hidden, dims.shape(), qkv_bias=bias, out_bias=bias)

        def layer(index: int) -> PreNormLayer:
            return PreNormLayer(
                Attention(build, index, spec, rotary),
                GatedMLP(build, dims.hidden, dims.intermediate, dims.activation),
                gemma_norm(build, dims.hidden, dims.eps),
                gemma_norm(build, dims.hidden, dims.eps),
                terms=True,
            )

        last = gemma_norm(build, dims.hidden, dims.eps)
        super().__init__(decoder_parts(build, dims, layer, last, scales=Scales(embed=dims.hidden**0.5)))

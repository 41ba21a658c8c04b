"""GPT-2: learned positions, layer norms with bias, matrices stored [in, out]."""

from __future__ import annotations

from cadence.kernels.interface.attention_batch import AttentionShape
from cadence.models.decoder import DecoderLM, DecoderParts, PreNormLayer
from cadence.models.dims import split_heads
from cadence.models.interface.build import BuildContext, ConfigView, WithDefaults
from cadence.models.layers.attention import Attention, AttentionSpec
from cadence.models.layers.embedding import Embedding, LearnedPositions, LMHead
from cadence.models.layers.linear import NoLinear
from cadence.models.layers.mlp import PlainMLP
from cadence.models.layers.norm import LayerNorm
from cadence.models.layers.positions.rotary import NoRotary
from cadence.models.weight_map import Rule, WeightMap

GPT2_WEIGHTS = WeightMap(
    (
        Rule("transformer.wte.*", "embed.tokens.*"),
        Rule("transformer.wpe.*", "embed.places.*"),
        Rule("transformer.h.*.ln_1.*", "layers.*.attn_norm.*"),
        Rule("transformer.h.*.attn.c_attn.*", "layers.*.attn.qkv.*", transpose=True),
        Rule("transformer.h.*.attn.c_proj.*", "layers.*.attn.out.*", transpose=True),
        Rule("transformer.h.*.ln_2.*", "layers.*.mlp_norm.*"),
        Rule("transformer.h.*.mlp.c_fc.*", "layers.*.mlp.up.*", transpose=True),
        Rule("transformer.h.*.mlp.c_proj.*", "layers.*.mlp.down.*", transpose=True),
        Rule("transformer.ln_f.*", "norm.*"),
        Rule("lm_head.*", "lm_head.*"),
    ),
    (("transformer.", ""),),
    ("**.attn.bias", "**.attn.masked_bias"),  # causal masks that old checkpoints carry
)

_DEFAULTS = {
    "n_inner": None,
    "activation_function": "gelu_new",
    "layer_norm_epsilon": 1e-5,
    "scale_attn_weights": True,
    "scale_attn_by_inverse_layer_idx": False,
    "tie_word_embeddings": True,
}


class GPT2LMHeadModel(DecoderLM):
    weights = GPT2_WEIGHTS

    def __init__(self, hf: ConfigView, build: BuildContext) -> None:
        hf = WithDefaults(hf, _DEFAULTS)
        hidden = hf["n_embd"]
        tokens = Embedding(build, hf["vocab_size"], hidden)
        super().__init__(
            DecoderParts(
                embed=LearnedPositions(build, tokens, NoLinear(), hf["n_positions"], hidden),
                layers=build.stage.layers(hf["n_layer"], lambda index: _layer(hf, build, index)),
                norm=LayerNorm(build, hidden, hf["layer_norm_epsilon"]),
                lm_head=LMHead(build, tokens, tied=hf["tie_word_embeddings"]),
            )
        )


def _layer(hf: ConfigView, build: BuildContext, index: int) -> PreNormLayer:
    hidden, heads, eps = hf["n_embd"], hf["n_head"], hf["layer_norm_epsilon"]
    head_dim = split_heads(hidden, heads)
    scale = head_dim**-0.5 if hf["scale_attn_weights"] else 1.0
    if hf["scale_attn_by_inverse_layer_idx"]:
        scale /= index + 1
    spec = AttentionSpec(hidden, AttentionShape(heads, heads, head_dim, scale), qkv_bias=True, out_bias=True)
    return PreNormLayer(
        Attention(build, index, spec, NoRotary()),
        PlainMLP(build, hidden, hf["n_inner"] or 4 * hidden, hf["activation_function"]),
        LayerNorm(build, hidden, eps),
        LayerNorm(build, hidden, eps),
    )

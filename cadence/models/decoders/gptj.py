"""GPT-J: attention and feed-forward side by side after one norm, neighbours that turn together, biased logits."""

from __future__ import annotations

from cadence.models.decoder import DecoderLM, DecoderParts, ParallelLayer
from cadence.models.dims import Dims, decoder_parts, split_heads
from cadence.models.interface.build import BuildContext, ConfigView, WithDefaults
from cadence.models.layers.attention import Attention, AttentionSpec
from cadence.models.layers.mlp import PlainMLP
from cadence.models.layers.norm import LayerNorm
from cadence.models.layers.positions.rope_config import RopeConfig
from cadence.models.layers.positions.rotary import Rotary
from cadence.models.weight_map import Rule, WeightMap

GPTJ_WEIGHTS = WeightMap(
    (
        Rule("transformer.wte.*", "embed.*"),
        Rule("transformer.ln_f.*", "norm.*"),
        Rule("lm_head.weight", "lm_head.weight"),
        Rule("lm_head.bias", "lm_head.added.weight"),
        Rule("transformer.h.*.attn.q_proj.*", "layers.*.attn.qkv.*", part="q"),
        Rule("transformer.h.*.attn.k_proj.*", "layers.*.attn.qkv.*", part="k"),
        Rule("transformer.h.*.attn.v_proj.*", "layers.*.attn.qkv.*", part="v"),
        Rule("transformer.h.*.attn.out_proj.*", "layers.*.attn.out.*"),
        Rule("transformer.h.*.mlp.fc_in.*", "layers.*.mlp.up.*"),
        Rule("transformer.h.*.mlp.fc_out.*", "layers.*.mlp.down.*"),
        Rule("transformer.h.*.ln_1.*", "layers.*.attn_norm.*"),
    ),
    (("transformer.", ""),),
    ("**.attn.bias", "**.attn.masked_bias"),
)

_DEFAULTS = {
    "n_positions": 2048,
    "n_inner": None,
    "rotary_dim": 64,
    "activation_function": "gelu_new",
    "layer_norm_epsilon": 1e-5,
    "tie_word_embeddings": False,
}


class GPTJForCausalLM(DecoderLM):
    weights = GPTJ_WEIGHTS

    def __init__(self, hf: ConfigView, build: BuildContext) -> None:
        super().__init__(gptj_decoder(hf, build, Attention))


def gptj_decoder(hf: ConfigView, build: BuildContext, attention: type[Attention]) -> DecoderParts:
    dims = _dims(WithDefaults(hf, _DEFAULTS))
    positions, pairs = hf.get("n_positions", 2048), hf.get("rotary_dim", 64) or dims.head_dim
    rope = RopeConfig("default", 10_000.0, min(pairs, dims.head_dim), positions, positions)
    rotary, spec = Rotary(build, rope, neighbours=True), AttentionSpec(dims.hidden, dims.shape())

    def norm() -> LayerNorm:
        return LayerNorm(build, dims.hidden, dims.eps)

    def layer(index: int) -> ParallelLayer:
        mlp = PlainMLP(build, dims.hidden, dims.intermediate, dims.activation)
        return ParallelLayer(attention(build, index, spec, rotary), mlp, norm())

    return decoder_parts(build, dims, layer, norm(), head_bias=True)


def _dims(hf: ConfigView) -> Dims:
    hidden, heads = hf["n_embd"], hf["n_head"]
    return Dims(
        vocab=hf["vocab_size"],
        hidden=hidden,
        intermediate=hf["n_inner"] or 4 * hidden,
        layers=hf["n_layer"],
        heads=heads,
        kv_heads=heads,
        head_dim=split_heads(hidden, heads),
        eps=hf["layer_norm_epsilon"],
        activation=hf["activation_function"],
        tied=bool(hf["tie_word_embeddings"]),
    )

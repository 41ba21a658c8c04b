"""LFM2: short convolutions between gates, and layers of attention, of which heads are normed and rotated."""

from __future__ import annotations

from cadence.models.decoder import DecoderLM
from cadence.models.dims import Dims, gated_decoder, read_dims
from cadence.models.interface.build import BuildContext, ConfigView, WithChanges, WithDefaults
from cadence.models.layers.attention import Attention, AttentionSpec, HeadNorms
from cadence.models.layers.mixer import Mixer
from cadence.models.layers.norm import RMSNorm
from cadence.models.layers.positions.rope_config import read_rope
from cadence.models.layers.positions.rotary import Rotary
from cadence.models.layers.states.short_conv import GatedShortConv
from cadence.models.states.shared import layer_kinds, places_of
from cadence.models.weight_map import Rule, WeightMap

_LAYER = "model.layers.*"

MIXER_RULES = (
    Rule("model.embed_tokens.*", "embed.*"),
    Rule("model.embedding_norm.*", "norm.*"),
    Rule("lm_head.*", "lm_head.*"),
    Rule(f"{_LAYER}.operator_norm.*", "layers.*.attn_norm.*"),
    Rule(f"{_LAYER}.ffn_norm.*", "layers.*.mlp_norm.*"),
    Rule(f"{_LAYER}.self_attn.q_proj.*", "layers.*.attn.qkv.*", part="q"),
    Rule(f"{_LAYER}.self_attn.k_proj.*", "layers.*.attn.qkv.*", part="k"),
    Rule(f"{_LAYER}.self_attn.v_proj.*", "layers.*.attn.qkv.*", part="v"),
    Rule(f"{_LAYER}.self_attn.out_proj.*", "layers.*.attn.out.*"),
    Rule(f"{_LAYER}.self_attn.q_layernorm.*", "layers.*.attn.q_norm.*"),
    Rule(f"{_LAYER}.self_attn.k_layernorm.*", "layers.*.attn.k_norm.*"),
    Rule(f"{_LAYER}.conv.in_proj.*", "layers.*.attn.in_proj.*"),
    Rule(f"{_LAYER}.conv.conv.weight", "layers.*.attn.conv.weight", taps=True),
    Rule(f"{_LAYER}.conv.conv.bias", "layers.*.attn.conv.bias"),
    Rule(f"{_LAYER}.conv.out_proj.*", "layers.*.attn.out_proj.*"),
)

MLP_RULES = (
    Rule(f"{_LAYER}.feed_forward.w1.*", "layers.*.mlp.gate_up.*", part="gate"),
    Rule(f"{_LAYER}.feed_forward.w3.*", "layers.*.mlp.gate_up.*", part="up"),
    Rule(f"{_LAYER}.feed_forward.w2.*", "layers.*.mlp.down.*"),
)

_DEFAULTS = {
    "num_key_value_heads": 8,
    "norm_eps": 1e-5,
    "conv_bias": False,
    "conv_L_cache": 3,
    "block_multiple_of": 256,
    "block_ffn_dim_multiplier": 1.0,
    "block_auto_adjust_ff_dim": True,
}
THETA = 1_000_000.0


class Lfm2ForCausalLM(DecoderLM):
    weights = WeightMap(MIXER_RULES + MLP_RULES)

    def __init__(self, hf: ConfigView, build: BuildContext) -> None:
        hf = WithDefaults(hf, _DEFAULTS)
        tied = hf.get("tie_embedding", hf.get("tie_word_embeddings", True))
        changes = {"rms_norm_eps": hf["norm_eps"], "tie_word_embeddings": tied, "intermediate_size": _inner(hf)}
        dims = read_dims(WithChanges(hf, changes))
        super().__init__(gated_decoder(build, dims, LFM2Mixers(hf, build, dims).mixer))


class LFM2Mixers:
    def __init__(self, hf: ConfigView, build: BuildContext, dims: Dims) -> None:
        self._build, self._dims = build, dims
        self._attends = places_of(_attending(hf, dims.layers))
        self._rotary = Rotary(build, read_rope(hf, dims.head_dim, theta=THETA))
        self._taps, self._bias = hf["conv_L_cache"], bool(hf["conv_bias"])

    def mixer(self, index: int) -> Mixer:
        build, dims = self._build, self._dims
        if index not in self._attends:
            return GatedShortConv(build, dims.hidden, self._taps, bias=self._bias)
        norms = HeadNorms(RMSNorm(build, dims.head_dim, dims.eps), RMSNorm(build, dims.head_dim, dims.eps))
        return Attention(build, self._attends[index], AttentionSpec(dims.hidden, dims.shape()), self._rotary, norms)


def _attending(hf: ConfigView, layers: int) -> list[int]:
    kinds = hf.get("layer_types")
    if kinds:
        return [index for index, kind in enumerate(layer_kinds(kinds)[:layers]) if kind == "full_attention"]
    named = hf.get("full_attn_idxs")
    return list(range(layers)) if named is None else [index for index in range(layers) if index in named]


def _inner(hf: ConfigView) -> int:
    """Entries between the maps of a feed-forward block: the file's number, or two thirds of it, stretched and rounded
    up."""
    size = hf.get("block_ff_dim", hf["intermediate_size"])
    if not hf["block_auto_adjust_ff_dim"]:
        return size
    size, unit = int(2 * size / 3), hf["block_multiple_of"]
    if hf["block_ffn_dim_multiplier"] is not None:
        size = -(-int(hf["block_ffn_dim_multiplier"] * size) // unit) * unit
    return size

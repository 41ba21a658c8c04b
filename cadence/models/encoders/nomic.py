"""Nomic's BERT: rotated queries and keys, gated feed-forward, no biases. Configurations have names of its own or those
that transformers gave them."""

from __future__ import annotations

from cadence.core.errors import ConfigError
from cadence.models.decoder import PostNormLayer
from cadence.models.encoder import EncoderDims, EncoderEmbedding, EncoderModel, EncoderParts
from cadence.models.interface.build import BuildContext, ConfigView, WithChanges
from cadence.models.layers.attention import Attention, AttentionSpec
from cadence.models.layers.embedding import Embedding, NoTable, PositionTable
from cadence.models.layers.mlp import GatedMLP
from cadence.models.layers.norm import NoNorm
from cadence.models.layers.positions.rope_config import read_rope
from cadence.models.layers.positions.rotary import Rotary
from cadence.models.weight_map import Rule, WeightMap

_RULES = (
    Rule("embeddings.word_embeddings.*", "embed.tokens.*"),
    Rule("embeddings.token_type_embeddings.*", "embed.types.*"),
    Rule("emb_ln.*", "embed.norm.*"),
    Rule("encoder.layers.*.attn.Wqkv.*", "layers.*.attn.qkv.*"),
    Rule("encoder.layers.*.attn.out_proj.*", "layers.*.attn.out.*"),
    Rule("encoder.layers.*.norm1.*", "layers.*.attn_norm.*"),
    Rule("encoder.layers.*.mlp.fc12.*", "layers.*.mlp.gate_up.*", part="gate"),
    Rule("encoder.layers.*.mlp.fc11.*", "layers.*.mlp.gate_up.*", part="up"),
    Rule("encoder.layers.*.mlp.fc2.*", "layers.*.mlp.down.*"),
    Rule("encoder.layers.*.norm2.*", "layers.*.mlp_norm.*"),
)

_OWN_NAMES = {
    "hidden_size": "n_embd",
    "intermediate_size": "n_inner",
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
    "max_position_embeddings": "n_positions",
    "layer_norm_eps": "layer_norm_epsilon",
    "rope_theta": "rotary_emb_base",
    "partial_rotary_factor": "rotary_emb_fraction",
}
_PLAIN = {  # what other models that are described in the same words have otherwise
    "activation_function": "swiglu",
    "prenorm": False,
    "use_rms_norm": False,
    "parallel_block": False,
    "qkv_proj_bias": False,
    "mlp_fc1_bias": False,
    "mlp_fc2_bias": False,
    "rotary_emb_interleaved": False,
    "rotary_emb_scale_base": None,
}


class NomicBertModel(EncoderModel):
    weights = WeightMap(_RULES, ignored=("pooler.**", "cls.**"))

    def __init__(self, hf: ConfigView, build: BuildContext) -> None:
        super().__init__(_parts(_with_usual_names(hf), build))


def _with_usual_names(hf: ConfigView) -> ConfigView:
    if hf.get("n_embd") is None:
        return hf
    for name, plain in _PLAIN.items():
        if hf.get(name, plain) != plain:
            raise ConfigError(f"{name} must be {plain!r}, found {hf.get(name)!r}", field=name)
    found = {usual: hf.get(own) for usual, own in _OWN_NAMES.items()}
    return WithChanges(hf, {usual: value for usual, value in found.items() if value is not None})


def _parts(hf: ConfigView, build: BuildContext) -> EncoderParts:
    dims = EncoderDims(
        vocab=hf["vocab_size"],
        hidden=hf["hidden_size"],
        intermediate=hf["intermediate_size"],
        layers=hf["num_hidden_layers"],
        heads=hf["num_attention_heads"],
        positions=hf["max_position_embeddings"],
        eps=hf.get("layer_norm_eps", 1e-12),
        activation=hf.get("hidden_act", "silu"),
    )
    shape = dims.shape()
    rotary, spec = Rotary(build, read_rope(hf, shape.head_dim, theta=1000.0)), AttentionSpec(dims.hidden, shape)

    def layer(index: int) -> PostNormLayer:
        return PostNormLayer(
            Attention(build, index, spec, rotary),
            GatedMLP(build, dims.hidden, dims.intermediate, dims.activation),
            dims.norm(build),
            dims.norm(build),
        )

    types = PositionTable(build, hf.get("type_vocab_size", 2), dims.hidden, 0)
    tokens = Embedding(build, dims.vocab, dims.hidden)
    return EncoderParts(
        embed=EncoderEmbedding(tokens, dims.norm(build), types=types, places=NoTable()),
        layers=build.stage.layers(dims.layers, layer),
        norm=NoNorm(),
        vocab_size=dims.vocab,
    )

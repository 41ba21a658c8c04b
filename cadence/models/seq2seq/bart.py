"""BART and mBART: learned positions, norms after each block (BART) or before it (mBART)."""

from __future__ import annotations

from dataclasses import dataclass

from cadence.core.errors import ConfigError
from cadence.kernels.interface.attention_batch import AttentionShape
from cadence.models.decoder import PostNormLayer, PreNormLayer
from cadence.models.dims import split_heads
from cadence.models.encoder import EncoderEmbedding
from cadence.models.encoder_decoder import (
    KV_LAYERS,
    CrossPostNormLayer,
    CrossPreNormLayer,
    EncoderDecoderLM,
    EncoderDecoderParts,
    EncoderStack,
    LogitsBias,
    TextFront,
)
from cadence.models.interface.build import BuildContext, ConfigView, WithDefaults
from cadence.models.layers.attention import Attention, AttentionSpec
from cadence.models.layers.cross_attention import CrossAttention
from cadence.models.layers.embedding import Embedding, LMHead, NoTable, PositionTable
from cadence.models.layers.mlp import PlainMLP
from cadence.models.layers.norm import LayerNorm, NoNorm, Norm
from cadence.models.layers.rotary import NoRotary
from cadence.models.weight_map import Rule, WeightMap

_EPS = 1e-5
_POSITION_OFFSET = 2


def side_rules(side: str, ours: str) -> tuple[Rule, ...]:
    """Of the layers of the encoder or the decoder. side: as a checkpoint names it; ours: what our names begin with"""
    layers = f"model.{side}.layers.*"
    return (
        Rule(f"{layers}.self_attn.q_proj.*", f"{ours}layers.*.attn.qkv.*", part="q"),
        Rule(f"{layers}.self_attn.k_proj.*", f"{ours}layers.*.attn.qkv.*", part="k"),
        Rule(f"{layers}.self_attn.v_proj.*", f"{ours}layers.*.attn.qkv.*", part="v"),
        Rule(f"{layers}.self_attn.out_proj.*", f"{ours}layers.*.attn.out.*"),
        Rule(f"{layers}.self_attn_layer_norm.*", f"{ours}layers.*.attn_norm.*"),
        Rule(f"{layers}.fc1.*", f"{ours}layers.*.mlp.up.*"),
        Rule(f"{layers}.fc2.*", f"{ours}layers.*.mlp.down.*"),
        Rule(f"{layers}.final_layer_norm.*", f"{ours}layers.*.mlp_norm.*"),
    )


CROSS_RULES = (
    Rule("model.decoder.layers.*.encoder_attn.q_proj.*", "layers.*.cross.q.*"),
    Rule("model.decoder.layers.*.encoder_attn.k_proj.*", "layers.*.cross.kv.*", part="k"),
    Rule("model.decoder.layers.*.encoder_attn.v_proj.*", "layers.*.cross.kv.*", part="v"),
    Rule("model.decoder.layers.*.encoder_attn.out_proj.*", "layers.*.cross.out.*"),
    Rule("model.decoder.layers.*.encoder_attn_layer_norm.*", "layers.*.cross_norm.*"),
)

END_RULES = (
    Rule("model.decoder.layer_norm.*", "norm.*"),
    Rule("model.encoder.layer_norm.*", "encoder.norm.*"),
    Rule("lm_head.*", "lm_head.*"),
    Rule("final_logits_bias", "logits_bias.weight", optional=True),
)

SHARED_RULES = (
    Rule("model.shared.*", "embed.tokens.*"),
    Rule("model.encoder.embed_tokens.*", "encoder.front.embed.tokens.*"),
)
OTHER_NAMES = (("model.shared.", "model.decoder.embed_tokens."), ("model.", ""))
IGNORED = ("model.decoder.embed_tokens.weight", "model.encoder.version", "model.decoder.version")  # copies, and marks

BART_WEIGHTS = WeightMap(
    (
        *SHARED_RULES,
        Rule("model.decoder.embed_positions.*", "embed.places.*"),
        Rule("model.decoder.layernorm_embedding.*", "embed.norm.*"),
        Rule("model.encoder.embed_positions.*", "encoder.front.embed.places.*"),
        Rule("model.encoder.layernorm_embedding.*", "encoder.front.embed.norm.*"),
        *side_rules("encoder", "encoder."),
        *side_rules("decoder", ""),
        *CROSS_RULES,
        *END_RULES,
    ),
    OTHER_NAMES,
    IGNORED,
)

_DEFAULTS = {
    "activation_function": "gelu",
    "scale_embedding": False,
    "tie_word_embeddings": True,
    "max_position_embeddings": 1024,
}


@dataclass(frozen=True, slots=True)
class SideDims:
    """Sizes of the encoder, or of the decoder."""

    hidden: int
    intermediate: int
    layers: int
    heads: int
    activation: str

    @classmethod
    def read(cls, hf: ConfigView, side: str) -> SideDims:
        """side: encoder | decoder"""
        return cls(
            hidden=hf["d_model"],
            intermediate=hf[f"{side}_ffn_dim"],
            layers=hf[f"{side}_layers"],
            heads=hf[f"{side}_attention_heads"],
            activation=hf["activation_function"],
        )

    def spec(self) -> AttentionSpec:
        dim = split_heads(self.hidden, self.heads)
        return AttentionSpec(
            self.hidden, AttentionShape(self.heads, self.heads, dim, dim**-0.5), qkv_bias=True, out_bias=True
        )

    def norm(self, build: BuildContext) -> LayerNorm:
        return LayerNorm(build, self.hidden, _EPS)

    def mlp(self, build: BuildContext) -> PlainMLP:
        return PlainMLP(build, self.hidden, self.intermediate, self.activation)


def encoder_layer(build: BuildContext, dims: SideDims, index: int, *, pre_norm: bool) -> PreNormLayer | PostNormLayer:
    attn = Attention(build, index, dims.spec(), NoRotary())
    kind = PreNormLayer if pre_norm else PostNormLayer
    return kind(attn, dims.mlp(build), dims.norm(build), dims.norm(build))


def decoder_layer(
    build: BuildContext, dims: SideDims, index: int, *, pre_norm: bool
) -> CrossPreNormLayer | CrossPostNormLayer:
    attn = Attention(build, KV_LAYERS * index, dims.spec(), NoRotary())
    cross = CrossAttention(build, KV_LAYERS * index + 1, dims.spec())
    kind = CrossPreNormLayer if pre_norm else CrossPostNormLayer
    return kind(attn, cross, dims.mlp(build), (dims.norm(build), dims.norm(build), dims.norm(build)))


def check_positions(build: BuildContext, positions: int) -> None:
    """Of the decoder."""
    if build.max_model_len > positions:
        limit = f"max_model_len {build.max_model_len} is more than the {positions} positions the model has"
        raise ConfigError(limit, field="max_model_len")


def bart_parts(hf: ConfigView, build: BuildContext, *, pre_norm: bool) -> EncoderDecoderParts:
    hf = WithDefaults(hf, _DEFAULTS)
    encoder, decoder = SideDims.read(hf, "encoder"), SideDims.read(hf, "decoder")
    scale = hf["d_model"] ** 0.5 if hf["scale_embedding"] else 1.0
    tokens = Embedding(build, hf["vocab_size"], hf["d_model"], scale)
    check_positions(build, hf["max_position_embeddings"])

    def embed() -> EncoderEmbedding:
        places = PositionTable(build, hf["max_position_embeddings"], hf["d_model"], _POSITION_OFFSET)
        return EncoderEmbedding(tokens, encoder.norm(build), types=NoTable(), places=places)

    def last_norm() -> Norm:
        return encoder.norm(build) if pre_norm else NoNorm()

    return EncoderDecoderParts(
        encoder=EncoderStack(
            TextFront(embed()),
            [encoder_layer(build, encoder, index, pre_norm=pre_norm) for index in range(encoder.layers)],
            last_norm(),
        ),
        embed=embed(),
        layers=build.stage.layers(
            decoder.layers, lambda index: decoder_layer(build, decoder, index, pre_norm=pre_norm)
        ),
        norm=last_norm(),
        lm_head=LMHead(build, tokens, tied=hf["tie_word_embeddings"]),
        logits_bias=LogitsBias(build, hf["vocab_size"]),
        dtype=build.dtype,
    )


class BartForConditionalGeneration(EncoderDecoderLM):
    weights = BART_WEIGHTS

    def __init__(self, hf: ConfigView, build: BuildContext) -> None:
        super().__init__(bart_parts(hf, build, pre_norm=False))


class MBartForConditionalGeneration(EncoderDecoderLM):
    weights = BART_WEIGHTS

    def __init__(self, hf: ConfigView, build: BuildContext) -> None:
        super().__init__(bart_parts(hf, build, pre_norm=True))

"""T5, its version 1.1, Flan-T5 and mT5: no positions but a bias by the distance between tokens, RMS norms before each
block, no biases, scores that are not scaled."""

from __future__ import annotations

from dataclasses import dataclass, replace

from cadence.core.errors import ConfigError
from cadence.kernels.interface.attention_batch import NO_BIAS, AttentionShape, DistanceBias
from cadence.models.decoder import PreNormLayer
from cadence.models.encoder_decoder import (
    KV_LAYERS,
    CrossPreNormLayer,
    EncoderDecoderLM,
    EncoderDecoderParts,
    EncoderStack,
    TextFront,
)
from cadence.models.interface.build import BuildContext, ConfigView, WithDefaults
from cadence.models.layers.attention import Attention, AttentionSpec
from cadence.models.layers.cross_attention import CrossAttention
from cadence.models.layers.distances import Distances
from cadence.models.layers.embedding import Embedding, LMHead, NoLogitsBias
from cadence.models.layers.mlp import GatedMLP, PlainMLP
from cadence.models.layers.norm import RMSNorm
from cadence.models.layers.positions.rotary import NoRotary
from cadence.models.weight_map import Rule, WeightMap

_GATED = {"gated-gelu": "gelu_new", "gated-silu": "silu"}
_PLAIN = ("relu", "gelu_new", "silu")


def _block_rules(side: str, ours: str, feed_forward: int) -> tuple[Rule, ...]:
    """feed_forward: its number among a layer's blocks"""
    attn, inner = f"{side}.block.*.layer.0", f"{side}.block.*.layer.{feed_forward}"
    return (
        Rule(f"{attn}.SelfAttention.q.*", f"{ours}layers.*.attn.qkv.*", part="q"),
        Rule(f"{attn}.SelfAttention.k.*", f"{ours}layers.*.attn.qkv.*", part="k"),
        Rule(f"{attn}.SelfAttention.v.*", f"{ours}layers.*.attn.qkv.*", part="v"),
        Rule(f"{attn}.SelfAttention.o.*", f"{ours}layers.*.attn.out.*"),
        Rule(f"{attn}.layer_norm.*", f"{ours}layers.*.attn_norm.*"),
        Rule(f"{inner}.DenseReluDense.wi.*", f"{ours}layers.*.mlp.up.*"),
        Rule(f"{inner}.DenseReluDense.wi_0.*", f"{ours}layers.*.mlp.gate_up.*", part="gate"),
        Rule(f"{inner}.DenseReluDense.wi_1.*", f"{ours}layers.*.mlp.gate_up.*", part="up"),
        Rule(f"{inner}.DenseReluDense.wo.*", f"{ours}layers.*.mlp.down.*"),
        Rule(f"{inner}.layer_norm.*", f"{ours}layers.*.mlp_norm.*"),
    )


_NORM_RULE = Rule("decoder.final_layer_norm.*", "norm.*")
_RULES = (
    Rule("shared.*", "embed.*"),
    Rule("encoder.embed_tokens.*", "encoder.front.embed.*"),
    *_block_rules("encoder", "encoder.", 1),
    *_block_rules("decoder", "", 2),
    Rule("decoder.block.*.layer.1.EncDecAttention.q.*", "layers.*.cross.q.*"),
    Rule("decoder.block.*.layer.1.EncDecAttention.k.*", "layers.*.cross.kv.*", part="k"),
    Rule("decoder.block.*.layer.1.EncDecAttention.v.*", "layers.*.cross.kv.*", part="v"),
    Rule("decoder.block.*.layer.1.EncDecAttention.o.*", "layers.*.cross.out.*"),
    Rule("decoder.block.*.layer.1.layer_norm.*", "layers.*.cross_norm.*"),
    Rule("encoder.block.0.layer.0.SelfAttention.relative_attention_bias.*", "encoder_distances.*"),
    Rule("decoder.block.0.layer.0.SelfAttention.relative_attention_bias.*", "distances.*"),
    Rule("encoder.final_layer_norm.*", "encoder.norm.*"),
    Rule("lm_head.*", "lm_head.*"),
)
# A head of its own may have been left out where it is the embedding's.
_OTHER_NAMES = (
    ("shared.", "decoder.embed_tokens."),
    ("encoder.embed_tokens.", "shared."),
    ("lm_head.", "shared."),
)
_IGNORED = (
    "encoder.embed_tokens.weight",
    "decoder.embed_tokens.weight",
    "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight",  # that nothing reads
)

_DEFAULTS = {
    "num_decoder_layers": None,
    "relative_attention_num_buckets": 32,
    "relative_attention_max_distance": 128,
    "layer_norm_epsilon": 1e-6,
    "feed_forward_proj": "relu",
    "tie_word_embeddings": True,
}


@dataclass(frozen=True, slots=True)
class T5Dims:
    hidden: int
    inner: int
    heads: int
    head_dim: int
    eps: float
    feed_forward: str

    @classmethod
    def read(cls, hf: ConfigView) -> T5Dims:
        return cls(
            hidden=hf["d_model"],
            inner=hf["d_ff"],
            heads=hf["num_heads"],
            head_dim=hf["d_kv"],
            eps=hf["layer_norm_epsilon"],
            feed_forward=hf["feed_forward_proj"],
        )

    def spec(self, bias: DistanceBias = NO_BIAS) -> AttentionSpec:
        return AttentionSpec(self.hidden, AttentionShape(self.heads, self.heads, self.head_dim, 1.0, bias=bias))

    def norm(self, build: BuildContext, *, wide: bool = False) -> RMSNorm:
        return RMSNorm(build, self.hidden, self.eps, wide=wide)

    def mlp(self, build: BuildContext) -> GatedMLP | PlainMLP:
        if self.feed_forward in _GATED:
            return GatedMLP(build, self.hidden, self.inner, _GATED[self.feed_forward])
        if self.feed_forward not in _PLAIN:
            message = f"feed_forward_proj {self.feed_forward!r} is not one of {sorted((*_GATED, *_PLAIN))}"
            raise ConfigError(message, field="feed_forward_proj")
        return PlainMLP(build, self.hidden, self.inner, self.feed_forward, bias=False)


class T5ForConditionalGeneration(EncoderDecoderLM):
    """Where the head is the embedding's own, hidden states are scaled for it: a part of the last norm."""

    def __init__(self, hf: ConfigView, build: BuildContext) -> None:
        hf = WithDefaults(hf, _DEFAULTS)
        scaled = hf["tie_word_embeddings"] and hf.get("scale_decoder_outputs", True)
        encoder, decoder = _distances(hf, build, both_ways=True), _distances(hf, build, both_ways=False)
        super().__init__(_parts(hf, build, (encoder.bias, decoder.bias), tied=scaled))
        self.encoder_distances, self.distances = encoder, decoder
        self.weights = _weights(hf["d_model"] ** -0.5 if scaled else 1.0)


class MT5ForConditionalGeneration(EncoderDecoderLM):
    """Its head is never the embedding's own, whatever the configuration says."""

    weights = WeightMap((*_RULES, _NORM_RULE), _OTHER_NAMES, _IGNORED)

    def __init__(self, hf: ConfigView, build: BuildContext) -> None:
        hf = WithDefaults(hf, _DEFAULTS | {"feed_forward_proj": "gated-gelu"})
        encoder, decoder = _distances(hf, build, both_ways=True), _distances(hf, build, both_ways=False)
        super().__init__(_parts(hf, build, (encoder.bias, decoder.bias), tied=False))
        self.encoder_distances, self.distances = encoder, decoder


def _weights(scale: float) -> WeightMap:
    """scale: of hidden states, before the head"""
    return WeightMap((*_RULES, replace(_NORM_RULE, times=scale)), _OTHER_NAMES, _IGNORED)


def _distances(hf: ConfigView, build: BuildContext, *, both_ways: bool) -> Distances:
    buckets, far = hf["relative_attention_num_buckets"], hf["relative_attention_max_distance"]
    if buckets < 4 or far <= buckets:
        message = (
            f"relative_attention_max_distance {far} is to be more than the {buckets} buckets, of which 4 are least"
        )
        raise ConfigError(message, field="relative_attention_max_distance")
    return Distances(build, buckets, hf["num_heads"], far, both_ways=both_ways)


def _parts(
    hf: ConfigView, build: BuildContext, biases: tuple[DistanceBias, DistanceBias], *, tied: bool
) -> EncoderDecoderParts:
    """biases: of the encoder's layers, and of the decoder's"""
    dims, tokens = T5Dims.read(hf), Embedding(build, hf["vocab_size"], hf["d_model"])

    def encoder_layer(index: int) -> PreNormLayer:
        attn = Attention(build, index, dims.spec(biases[0]), NoRotary())
        return PreNormLayer(attn, dims.mlp(build), dims.norm(build), dims.norm(build), terms=True)

    def layer(index: int) -> CrossPreNormLayer:
        attn = Attention(build, KV_LAYERS * index, dims.spec(biases[1]), NoRotary())
        cross = CrossAttention(build, KV_LAYERS * index + 1, dims.spec())
        norms = (dims.norm(build), dims.norm(build), dims.norm(build))
        return CrossPreNormLayer(attn, cross, dims.mlp(build), norms, terms=True)

    layers = [encoder_layer(index) for index in range(hf["num_layers"])]
    return EncoderDecoderParts(
        encoder=EncoderStack(TextFront(tokens), layers, dims.norm(build)),
        embed=tokens,
        layers=build.stage.layers(hf["num_decoder_layers"] or hf["num_layers"], layer),
        norm=dims.norm(build, wide=True),
        lm_head=LMHead(build, tokens, tied=tied),
        logits_bias=NoLogitsBias(),
        dtype=build.dtype,
    )

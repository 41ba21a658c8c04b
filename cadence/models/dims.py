"""Sizes of a decoder as Hugging Face names them, and the parts that follow from sizes alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from cadence.core.errors import ConfigError
from cadence.kernels.interface.attention_batch import AttentionShape
from cadence.models.decoder import DecoderParts, FeedForward, Layer, PreNormLayer
from cadence.models.interface.build import BuildContext, ConfigView
from cadence.models.layers.embedding import Embedding, LMHead
from cadence.models.layers.mixer import Mixer
from cadence.models.layers.mlp import GatedMLP
from cadence.models.layers.norm import Norm, RMSNorm


@dataclass(frozen=True, slots=True)
class Dims:
    vocab: int
    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    eps: float
    activation: str
    tied: bool

    def shape(self, window: int = 0, scale: float = 0.0, softcap: float = 0.0, *, chunk: int = 0) -> AttentionShape:
        """scale 0 means the usual 1 / sqrt(head_dim)."""
        scale = scale or self.head_dim**-0.5
        return AttentionShape(self.heads, self.kv_heads, self.head_dim, scale, window, softcap, chunk=chunk)


@dataclass(frozen=True, slots=True)
class Scales:
    """What the vectors of tokens, the stream and the logits are multiplied by."""

    embed: float = 1.0
    exact: bool = False  # the former: as `Embedding` has it
    stream: float = 1.0  # to get what others call hidden states
    logits: float = 1.0
    softcap: float = 0.0  # of logits, after that; 0 = none


PLAIN = Scales()


def read_dims(hf: ConfigView, eps: str = "rms_norm_eps") -> Dims:
    """eps: the field that has it"""
    hidden, heads = hf["hidden_size"], hf["num_attention_heads"]
    kv_heads = hf.get("num_key_value_heads") or heads
    if heads % kv_heads:
        message = f"num_attention_heads {heads} is no multiple of num_key_value_heads {kv_heads}"
        raise ConfigError(message, field="num_key_value_heads")
    return Dims(
        vocab=hf["vocab_size"],
        hidden=hidden,
        intermediate=hf["intermediate_size"],
        layers=hf["num_hidden_layers"],
        heads=heads,
        kv_heads=kv_heads,
        head_dim=hf.get("head_dim") or split_heads(hidden, heads),
        eps=hf.get(eps, 1e-6),
        activation=hf.get("hidden_activation") or hf.get("hidden_act") or "silu",
        tied=bool(hf.get("tie_word_embeddings", False)),
    )


def split_heads(hidden: int, heads: int) -> int:
    """Entries of each head, where the heads share the hidden size."""
    if hidden % heads:
        message = f"hidden size {hidden} is no multiple of the number of attention heads {heads}"
        raise ConfigError(message, field="num_attention_heads")
    return hidden // heads


def layer_windows(build: BuildContext, sliding_window: int | None, layer_types: list[str]) -> list[int]:
    """Window of each layer: `sliding_window` for those of type sliding_attention, 0 for full_attention."""
    unknown = set(layer_types) - {"sliding_attention", "full_attention"}
    if unknown:
        raise ConfigError(f"layer types {sorted(unknown)} are not supported", field="layer_types")
    window = build.window(sliding_window)
    return [window if kind == "sliding_attention" else 0 for kind in layer_types]


def types_in_turn(num_layers: int, pattern: int | str | None) -> list[str]:
    """Every so-many-th layer sees everything, the others have a window; 0 or None = all see everything."""
    if isinstance(pattern, str):
        raise ConfigError(f"sliding_window_pattern {pattern!r} is not a number", field="sliding_window_pattern")
    return ["sliding_attention" if pattern and at % pattern else "full_attention" for at in range(1, num_layers + 1)]


def decoder_parts(
    build: BuildContext,
    dims: Dims,
    layer: Callable[[int], Layer],
    norm: Norm,
    *,
    scales: Scales = PLAIN,
    head_bias: bool = False,
) -> DecoderParts:
    """Layers between an embedding and a head of these sizes; norm: after the last layer."""
    embed = Embedding(build, dims.vocab, dims.hidden, scale=scales.embed, exact=scales.exact)
    layers = build.stage.layers(dims.layers, layer)
    head = LMHead(build, embed, tied=dims.tied, scale=scales.logits, softcap=scales.softcap, bias=head_bias)
    return DecoderParts(embed=embed, layers=layers, norm=norm, lm_head=head, stream=scales.stream)


def gated_decoder(
    build: BuildContext,
    dims: Dims,
    mixer: Callable[[int], Mixer],
    feed_forward: Callable[[int], FeedForward] | None = None,
    *,
    mlp_bias: bool = False,
    scales: Scales = PLAIN,
    wide_norms: bool = False,
) -> DecoderParts:
    """The parts of a decoder of pre-norm layers with RMS norms and gated feed-forward blocks, unless others are given:
    what a block adds to the stream meets an RMS norm next."""

    def gated(index: int) -> GatedMLP:
        return GatedMLP(build, dims.hidden, dims.intermediate, dims.activation, bias=mlp_bias)

    def layer(index: int) -> PreNormLayer:
        return PreNormLayer(
            mixer(index),
            (feed_forward or gated)(index),
            norm(),
            norm(),
            terms=True,
        )

    def norm() -> RMSNorm:
        return RMSNorm(build, dims.hidden, dims.eps, wide=wide_norms)

    return decoder_parts(build, dims, layer, norm(), scales=scales)

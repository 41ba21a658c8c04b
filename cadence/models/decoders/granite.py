"""Granite 3: a Llama with factors on embeddings, scores, logits and on what each block adds to the stream.

The stream is carried as multiples of that last factor: x + factor * block is factor * (x / factor + block). So
embeddings are divided by it, blocks are added as they are, and an RMS norm sees no difference but in its eps.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from cadence.models.decoder import DecoderLM, DecoderParts, FeedForward
from cadence.models.dims import Dims, Scales, gated_decoder, read_dims
from cadence.models.interface.build import BuildContext, ConfigView
from cadence.models.layers.attention import Attention, AttentionSpec
from cadence.models.layers.positions.rope_config import read_rope
from cadence.models.layers.positions.rotary import Rotary
from cadence.models.llama import LLAMA_WEIGHTS


class GraniteForCausalLM(DecoderLM):
    weights = LLAMA_WEIGHTS

    def __init__(self, hf: ConfigView, build: BuildContext) -> None:
        super().__init__(granite_decoder(hf, build, read_dims(hf)))


def granite_decoder(
    hf: ConfigView, build: BuildContext, dims: Dims, feed_forward: Callable[[int], FeedForward] | None = None
) -> DecoderParts:
    """feed_forward: where it is not a gated block"""
    factor = hf.get("residual_multiplier", 1.0)
    rotary = Rotary(build, read_rope(hf, dims.head_dim))
    bias = bool(hf.get("attention_bias", False))
    shape = dims.shape(scale=hf.get("attention_multiplier", 1.0))
    spec = AttentionSpec(dims.hidden, shape, qkv_bias=bias, out_bias=bias)
    parts = gated_decoder(
        build,
        replace(dims, eps=dims.eps / factor**2),
        lambda index: Attention(build, index, spec, rotary),
        feed_forward,
        mlp_bias=bool(hf.get("mlp_bias", False)),
        scales=Scales(
            embed=(hf.get("embedding_multiplier") or 1.0) / factor,
            exact=True,
            logits=1.0 / hf.get("logits_scaling", 1.0),
        ),
    )
    return replace(parts, stream=factor)

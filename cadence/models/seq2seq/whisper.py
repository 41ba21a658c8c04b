"""Whisper: an encoder of sound, two convolutions before it; norms before each block, no bias where keys are made."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from cadence.core.errors import ConfigError
from cadence.kernels.interface.ops import Activation
from cadence.models.encoder import EncoderEmbedding
from cadence.models.encoder_decoder import EncoderDecoderLM, EncoderDecoderParts, EncoderStack
from cadence.models.interface.build import BuildContext, ConfigView, WithDefaults
from cadence.models.interface.encoder import EncoderBatch
from cadence.models.interface.model import ForwardContext
from cadence.models.layers.embedding import Embedding, LMHead, NoLogitsBias, NoTable, PositionTable
from cadence.models.layers.linear import Linear
from cadence.models.layers.norm import NoNorm
from cadence.models.seq2seq.sides import (
    SideDims,
    check_positions,
    cross_rules,
    decoder_layers,
    encoder_layers,
    side_rules,
)
from cadence.models.weight_map import Rule, WeightMap

TAPS = 3  # frames that a convolution sees: one before, its own, one after
_KEY = "k_proj.weight"  # all that there is of the map that makes keys

WHISPER_WEIGHTS = WeightMap(
    (
        Rule("model.encoder.conv1.weight", "encoder.front.first.weight", kernel=(TAPS,)),
        Rule("model.encoder.conv1.bias", "encoder.front.first.bias"),
        Rule("model.encoder.conv2.weight", "encoder.front.second.weight", kernel=(TAPS,)),
        Rule("model.encoder.conv2.bias", "encoder.front.second.bias"),
        Rule("model.encoder.embed_positions.*", "encoder.front.places.*"),
        *side_rules("encoder", "encoder.", _KEY),
        Rule("model.encoder.layer_norm.*", "encoder.norm.*"),
        Rule("model.decoder.embed_tokens.*", "embed.tokens.*"),
        Rule("model.decoder.embed_positions.*", "embed.places.*"),
        *side_rules("decoder", "", _KEY),
        *cross_rules(_KEY),
        Rule("model.decoder.layer_norm.*", "norm.*"),
        Rule("proj_out.*", "lm_head.*"),
    ),
    (("model.", ""),),
)

_DEFAULTS = {
    "activation_function": "gelu",
    "scale_embedding": False,
    "tie_word_embeddings": True,
    "max_source_positions": 1500,
    "max_target_positions": 448,
}


class FrameLinear(Linear):
    """A convolution over frames, as a product with the frames that each output sees side by side."""

    inner = False


class SoundFront(nn.Module):
    """Features of contents [mels, frames] each -> [T, hidden], a position for two frames."""

    def __init__(self, build: BuildContext, mels: int, hidden: int, positions: int) -> None:
        super().__init__()
        self.first = FrameLinear(build, mels * TAPS, hidden, bias=True)
        self.second = FrameLinear(build, hidden * TAPS, hidden, bias=True)
        self.places = PositionTable(build, positions, hidden, 0)

    def forward(self, batch: EncoderBatch, ctx: ForwardContext) -> torch.Tensor:
        frames = [features.shape[1] for features in batch.features]
        x = self._seen(self.first, [features.T for features in batch.features], 1, ctx)
        x = self._seen(self.second, x.split(frames), 2, ctx)
        return self.places(x, batch.positions, ctx)

    def _seen(
        self, linear: FrameLinear, contents: Sequence[torch.Tensor], stride: int, ctx: ForwardContext
    ) -> torch.Tensor:
        """contents [frames, channels] each -> gelu of the convolution, [positions in all, hidden]"""
        seen = torch.cat([_neighbours(frames, stride) for frames in contents])
        return ctx.ops.activate(linear(seen, ctx), Activation.GELU)


def _neighbours(frames: torch.Tensor, stride: int) -> torch.Tensor:
    """frames [n, channels] -> [ceil(n / stride), channels * TAPS]: of every channel the frames around an output's.
    Before the first frame and after the last there are zeros."""
    padded = nn.functional.pad(frames, (0, 0, 1, 1))
    return padded.unfold(0, TAPS, stride).flatten(1)


class WhisperForConditionalGeneration(EncoderDecoderLM):
    weights = WHISPER_WEIGHTS

    def __init__(self, hf: ConfigView, build: BuildContext) -> None:
        super().__init__(_parts(WithDefaults(hf, _DEFAULTS), build))
        for layer in (*self.encoder.layers, *self._own()):
            layer.attn.qkv.bias.zero_()  # that of keys stays so
        for layer in self._own():
            layer.cross.kv.bias.zero_()


def _parts(hf: ConfigView, build: BuildContext) -> EncoderDecoderParts:
    encoder, decoder = (SideDims.read(hf, side, pre_norm=True) for side in ("encoder", "decoder"))
    if encoder.activation != "gelu":
        message = f"activation_function {encoder.activation!r}: after its convolutions the encoder has gelu"
        raise ConfigError(message, field="activation_function")
    hidden, positions = hf["d_model"], hf["max_target_positions"]
    tokens = Embedding(build, hf["vocab_size"], hidden, hidden**0.5 if hf["scale_embedding"] else 1.0)
    check_positions(build, positions)
    front = SoundFront(build, hf["num_mel_bins"], hidden, hf["max_source_positions"])
    places = PositionTable(build, positions, hidden, 0)
    return EncoderDecoderParts(
        encoder=EncoderStack(front, encoder_layers(build, encoder), encoder.last_norm(build)),
        embed=EncoderEmbedding(tokens, NoNorm(), types=NoTable(), places=places),
        layers=decoder_layers(build, decoder),
        norm=decoder.last_norm(build),
        lm_head=LMHead(build, tokens, tied=hf["tie_word_embeddings"]),
        logits_bias=NoLogitsBias(),
        dtype=build.dtype,
        mels=hf["num_mel_bins"],
    )

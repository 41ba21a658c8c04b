"""Marian: BART with sines for positions, no norm after the embedding, and maybe a vocabulary for each side."""

from __future__ import annotations

import torch
from torch import nn

from cadence.models.encoder import EncoderEmbedding
from cadence.models.encoder_decoder import EncoderDecoderLM, EncoderDecoderParts, EncoderStack, TextFront
from cadence.models.interface.build import BuildContext, ConfigView, WithDefaults
from cadence.models.interface.model import ForwardContext
from cadence.models.layers.embedding import Embedding, LMHead, LogitsBias, NoTable
from cadence.models.layers.norm import NoNorm
from cadence.models.seq2seq.bart import COPIES, OTHER_NAMES, TEXT_RULES
from cadence.models.seq2seq.sides import SideDims, check_positions, decoder_layers, encoder_layers
from cadence.models.weight_map import WeightMap

_SINES = ("model.encoder.embed_positions.weight", "model.decoder.embed_positions.weight")  # they are computed

_DEFAULTS = {
    "activation_function": "gelu",
    "scale_embedding": False,
    "tie_word_embeddings": True,
    "share_encoder_decoder_embeddings": True,
    "decoder_vocab_size": None,
    "max_position_embeddings": 1024,
}


class SineTable(nn.Module):
    """x [T, size], positions [T] -> x + sines of them in the first half of the entries, cosines in the second."""

    def __init__(self, build: BuildContext, positions: int, size: int) -> None:
        super().__init__()
        at = torch.arange(positions, dtype=torch.float64, device=build.device)[:, None]
        angles = at / 10_000 ** (torch.arange(0, size, 2, dtype=torch.float64, device=build.device) / size)
        self._table = torch.cat([angles.sin(), angles[:, : size // 2].cos()], dim=1).to(build.dtype)

    def forward(self, x: torch.Tensor, positions: torch.Tensor, ctx: ForwardContext) -> torch.Tensor:
        return ctx.ops.add_rows(x, self._table, positions, 0)


class MarianMTModel(EncoderDecoderLM):
    weights = WeightMap(TEXT_RULES, OTHER_NAMES, (*COPIES, *_SINES))

    def __init__(self, hf: ConfigView, build: BuildContext) -> None:
        super().__init__(_parts(WithDefaults(hf, _DEFAULTS), build))


def _parts(hf: ConfigView, build: BuildContext) -> EncoderDecoderParts:
    encoder, decoder = (SideDims.read(hf, side, pre_norm=False) for side in ("encoder", "decoder"))
    hidden, positions = hf["d_model"], hf["max_position_embeddings"]
    scale, shared = hidden**0.5 if hf["scale_embedding"] else 1.0, hf["share_encoder_decoder_embeddings"]
    written = hf["vocab_size"] if shared else hf["decoder_vocab_size"] or hf["vocab_size"]
    tokens = Embedding(build, written, hidden, scale)
    read = tokens if shared else Embedding(build, hf["vocab_size"], hidden, scale)
    check_positions(build, positions)

    def embed(own: Embedding) -> EncoderEmbedding:
        return EncoderEmbedding(own, NoNorm(), types=NoTable(), places=SineTable(build, positions, hidden))

    return EncoderDecoderParts(
        encoder=EncoderStack(TextFront(embed(read)), encoder_layers(build, encoder), encoder.last_norm(build)),
        embed=embed(tokens),
        layers=decoder_layers(build, decoder),
        norm=decoder.last_norm(build),
        lm_head=LMHead(build, tokens, tied=hf["tie_word_embeddings"]),
        logits_bias=LogitsBias(build, 1, written),
        dtype=build.dtype,
    )

"""BART and mBART: learned positions, norms after each block (BART) or before it (mBART)."""

from __future__ import annotations

from cadence.models.encoder import EncoderEmbedding
from cadence.models.encoder_decoder import EncoderDecoderLM, EncoderDecoderParts, EncoderStack, TextFront
from cadence.models.interface.build import BuildContext, ConfigView, WithDefaults
from cadence.models.layers.embedding import Embedding, LMHead, LogitsBias, NoTable, PositionTable
from cadence.models.seq2seq.sides import (
    SideDims,
    check_positions,
    cross_rules,
    decoder_layers,
    encoder_layers,
    side_rules,
)
from cadence.models.weight_map import Rule, WeightMap

_POSITION_OFFSET = 2

TEXT_RULES = (
    Rule("model.shared.*", "embed.tokens.*"),
    Rule("model.encoder.embed_tokens.*", "encoder.front.embed.tokens.*"),
    *side_rules("encoder", "encoder."),
    *side_rules("decoder", ""),
    *cross_rules(),
    Rule("lm_head.*", "lm_head.*"),
    Rule("final_logits_bias", "logits_bias.weight", optional=True),
)
OTHER_NAMES = (
    ("model.shared.", "model.decoder.embed_tokens."),
    ("model.encoder.embed_tokens.", "model.shared."),
    ("model.", ""),
)
COPIES = ("model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight")  # of what is tied
_MARKS = ("model.encoder.version", "model.decoder.version")  # of old checkpoints

BART_WEIGHTS = WeightMap(
    (
        *TEXT_RULES,
        Rule("model.decoder.embed_positions.*", "embed.places.*"),
        Rule("model.decoder.layernorm_embedding.*", "embed.norm.*"),
        Rule("model.decoder.layer_norm.*", "norm.*"),
        Rule("model.encoder.embed_positions.*", "encoder.front.embed.places.*"),
        Rule("model.encoder.layernorm_embedding.*", "encoder.front.embed.norm.*"),
        Rule("model.encoder.layer_norm.*", "encoder.norm.*"),
    ),
    OTHER_NAMES,
    (*COPIES, *_MARKS),
)

_DEFAULTS = {
    "activation_function": "gelu",
    "scale_embedding": False,
    "tie_word_embeddings": True,
    "max_position_embeddings": 1024,
}


def _parts(hf: ConfigView, build: BuildContext, *, pre_norm: bool) -> EncoderDecoderParts:
    hf = WithDefaults(hf, _DEFAULTS)
    encoder, decoder = (SideDims.read(hf, side, pre_norm=pre_norm) for side in ("encoder", "decoder"))
    hidden, positions = hf["d_model"], hf["max_position_embeddings"]
    tokens = Embedding(build, hf["vocab_size"], hidden, hidden**0.5 if hf["scale_embedding"] else 1.0)
    check_positions(build, positions)

    def embed() -> EncoderEmbedding:
        places = PositionTable(build, positions, hidden, _POSITION_OFFSET)
        return EncoderEmbedding(tokens, encoder.norm(build), types=NoTable(), places=places)

    return EncoderDecoderParts(
        encoder=EncoderStack(TextFront(embed()), encoder_layers(build, encoder), encoder.last_norm(build)),
        embed=embed(),
        layers=decoder_layers(build, decoder),
        norm=decoder.last_norm(build),
        lm_head=LMHead(build, tokens, tied=hf["tie_word_embeddings"]),
        logits_bias=LogitsBias(build, 1, hf["vocab_size"]),
        dtype=build.dtype,
    )


class BartForConditionalGeneration(EncoderDecoderLM):
    weights = BART_WEIGHTS

    def __init__(self, hf: ConfigView, build: BuildContext) -> None:
        super().__init__(_parts(hf, build, pre_norm=False))


class MBartForConditionalGeneration(EncoderDecoderLM):
    weights = BART_WEIGHTS

    def __init__(self, hf: ConfigView, build: BuildContext) -> None:
        super().__init__(_parts(hf, build, pre_norm=True))

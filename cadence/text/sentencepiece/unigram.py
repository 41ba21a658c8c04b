"""A `tokenizers` backend of a SentencePiece unigram model, with the ids of its own pieces: T5 and its like."""

from __future__ import annotations

from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Backend

from cadence.text.sentencepiece.model_file import PieceType, SentencePieceFile
from cadence.text.sentencepiece.normalizer import MARK

DEFAULT_EXTRA_IDS = 100


def unigram_backend(model: SentencePieceFile, extra_ids: int) -> Backend:
    """`extra_ids`: tokens `<extra_id_0>` and so on, whose ids come after the pieces', the last one's first."""
    backend = Backend(unigram_model(model))
    before = [normalizers.Precompiled(model.charsmap)] if model.charsmap else []
    backend.normalizer = normalizers.Sequence(before)
    scheme = "always" if model.add_dummy_prefix else "never"
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            *([pre_tokenizers.WhitespaceSplit()] if model.remove_extra_whitespaces else []),
            pre_tokenizers.Metaspace(replacement=MARK, prepend_scheme=scheme, split=True),
        ]
    )
    backend.decoder = decoders.Metaspace(replacement=MARK, prepend_scheme=scheme, split=True)
    special = [*model.of_type(PieceType.CONTROL, PieceType.UNKNOWN)]
    special += [f"<extra_id_{number}>" for number in range(extra_ids - 1, -1, -1)]
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    own = model.of_type(PieceType.USER_DEFINED)
    backend.add_tokens([AddedToken(token, special=False, normalized=False) for token in own])
    return backend


def unigram_model(model: SentencePieceFile) -> models.Unigram:
    byte_fallback = any(piece.type is PieceType.BYTE for piece in model.pieces)
    vocabulary = [(piece.text, piece.score) for piece in model.pieces]
    return models.Unigram(vocabulary, unk_id=model.unknown_id, byte_fallback=byte_fallback)

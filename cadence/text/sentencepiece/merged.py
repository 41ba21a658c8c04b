"""A `tokenizers` backend of a SentencePiece model that merges pieces: Llama 1 and 2, Mistral 7B, Gemma."""

from __future__ import annotations

import numpy as np
from tokenizers import AddedToken, Regex, decoders, models, normalizers
from tokenizers import Tokenizer as Backend

from cadence.core.merges import merges_by_score
from cadence.text.sentencepiece.model_file import PieceType, SentencePieceFile
from cadence.text.sentencepiece.normalizer import MARK


def merged_backend(model: SentencePieceFile) -> Backend:
    """Pieces keep their ids."""
    vocab = {piece.text: number for number, piece in enumerate(model.pieces)}
    mergeable = [piece for piece in model.pieces if piece.type in (PieceType.NORMAL, PieceType.USER_DEFINED)]
    scores_np = np.array([piece.score for piece in mergeable], np.float32)
    backend = Backend(
        models.BPE(
            vocab,
            merges_by_score([piece.text for piece in mergeable], scores_np),
            unk_token=model.pieces[model.unknown_id].text,
            fuse_unk=True,
            byte_fallback=any(piece.type is PieceType.BYTE for piece in model.pieces),
        )
    )
    steps: list[normalizers.Normalizer] = [normalizers.Precompiled(model.charsmap)] if model.charsmap else []
    if model.remove_extra_whitespaces:
        steps += [normalizers.Replace(Regex("^ +"), ""), normalizers.Replace(Regex(" +"), " ")]
    steps += [normalizers.Replace(" ", MARK)]
    if model.remove_extra_whitespaces:
        steps += [normalizers.Replace(Regex(f"{MARK}+$"), "")]
    steps += [normalizers.Prepend(MARK)] if model.add_dummy_prefix else []
    backend.normalizer = normalizers.Sequence(steps)
    strip = [decoders.Strip(" ", 1, 0)] if model.add_dummy_prefix else []
    spaces = decoders.Replace(MARK, " ")
    backend.decoder = decoders.Sequence([spaces, decoders.ByteFallback(), decoders.Fuse(), *strip])
    special = model.of_type(PieceType.CONTROL, PieceType.UNKNOWN)
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    own = model.of_type(PieceType.USER_DEFINED)
    backend.add_tokens([AddedToken(token, special=False, normalized=False) for token in own])
    return backend

"""XLM-R's tokenizer from the metadata of a GGUF file ("t5"): of all ways to cut a word into pieces, the likeliest."""

from __future__ import annotations

from collections.abc import Sequence

from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, normalizers, pre_tokenizers

_MARK = "▁"  # SentencePiece's space


def unigram(pieces: Sequence[tuple[str, float]], unknown: int, characters: bytes) -> Backend:
    """pieces: with the logarithm of how likely each is. unknown: the id of the piece for what no other stands for.
    characters: SentencePiece's table of how they are normalised; b"" = not at all"""
    backend = Backend(models.Unigram(list(pieces), unk_id=unknown, byte_fallback=False))
    if characters:
        backend.normalizer = normalizers.Precompiled(characters)
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(replacement=_MARK, prepend_scheme="always")]
    )
    backend.decoder = decoders.Metaspace(replacement=_MARK, prepend_scheme="always")
    return backend

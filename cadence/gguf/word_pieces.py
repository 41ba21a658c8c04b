"""BERT's tokenizer from the metadata of a GGUF file ("bert"): words, then the longest pieces of them.

A file marks pieces that begin a word; a checkpoint of BERT marks those that go on with one.
"""

from __future__ import annotations

from collections.abc import Sequence

from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

_BEGINS, _GOES_ON = "▁", "##"


def word_pieces(tokens: Sequence[str], special: Sequence[str], unknown: str, ends: tuple[str, str]) -> Backend:
    """special: tokens that are no pieces. ends: those before a text and after it."""
    kept = frozenset(special)
    vocab = {token if token in kept else _piece(token): token_id for token_id, token in enumerate(tokens)}
    backend = Backend(models.WordPiece(vocab, unk_token=unknown, continuing_subword_prefix=_GOES_ON))
    backend.normalizer = normalizers.BertNormalizer(lowercase=True)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece(prefix=_GOES_ON)
    first, last = ends
    backend.post_processor = processors.TemplateProcessing(
        single=f"{first}:0 $A:0 {last}:0",
        pair=f"{first}:0 $A:0 {last}:0 $B:1 {last}:1",
        special_tokens=[(token, vocab[token]) for token in dict.fromkeys(ends)],
    )
    return backend


def _piece(token: str) -> str:
    return token[len(_BEGINS) :] if token.startswith(_BEGINS) else _GOES_ON + token

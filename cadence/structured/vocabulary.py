"""The tokens that grammars are made for: what each adds to the text, and which end it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from cadence.core.errors import InvalidRequestError
from cadence.text.null_tokenizer import AnyTokenizer


@dataclass(frozen=True, slots=True)
class Vocabulary:
    pieces: tuple[bytes, ...]  # [size]: the bytes of each token; b"" = it is none of the text, or padding
    special: dict[int, bytes]  # special tokens by id, with the names that grammars call them by; no text either
    stop_ids: tuple[int, ...]  # ascending; they end a text and are no part of it

    @property
    def size(self) -> int:
        """Of logits, which may be more than tokens."""
        return len(self.pieces)

    @classmethod
    def of(cls, tokenizer: AnyTokenizer, vocab_size: int, stop_ids: Iterable[int]) -> Vocabulary:
        """`vocab_size`: of the logits. Tokens past it, and ids past the tokenizer's, are never allowed."""
        tokenizer = tokenizer.loaded()
        if not tokenizer.pieces.additive or tokenizer.clean_up_spaces:
            raise InvalidRequestError(
                "structured output needs a tokenizer whose tokens are pieces of text, and this model's are not",
                "structured_outputs",
            )
        stops = sorted({token for token in stop_ids if 0 <= token < vocab_size})
        inner, named = tokenizer.pieces.keeping.inner, tokenizer.skipped_ids | set(stops)
        last = min(vocab_size, tokenizer.max_token_id + 1)
        pieces = [b"" if token in named else inner[token] for token in range(last)]
        special = {token: inner[token] for token in sorted(named) if token < last}
        return cls((*pieces, *[b""] * (vocab_size - last)), special, tuple(stops))

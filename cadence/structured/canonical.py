"""Text that must come next is written as the tokenizer writes it: one choice less for the model, and a token that a
forward can verify beside others."""

from __future__ import annotations

from collections.abc import Callable

from cadence.core.errors import InvalidRequestError

Encode = Callable[[bytes], list[int]]
MAX_KEPT = 4096  # texts


class CanonicalTokens:
    """The first token of a forced text. The last token of a text is never given: what follows may be a part of it."""

    def __init__(self, encode: Encode) -> None:
        self._encode = encode
        self._first: dict[bytes, int] = {}

    def first(self, text: bytes) -> int:
        """-1 = none is certain."""
        if text not in self._first:
            if len(self._first) >= MAX_KEPT:
                self._first.clear()
            self._first[text] = self._found(text)
        return self._first[text]

    def _found(self, text: bytes) -> int:
        try:
            tokens = self._encode(text)
        except (UnicodeDecodeError, InvalidRequestError):  # half a character
            return -1
        return tokens[0] if len(tokens) > 1 else -1

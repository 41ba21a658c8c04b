"""Token ids to text as they come, never half a character.

The text a request streams is what decoding its prompt and its tokens together adds to decoding the prompt alone, so
a leading space survives where the prompt goes before it. A character whose bytes are spread over several tokens is
held back until it is whole; `flush` gives what is left, as U+FFFD.

Bytes that are not UTF-8 become U+FFFD and leave the good characters around them alone. (One difference to decoding
at once remains: tokenizers with byte fallback then replace the whole run of bytes, good characters and all, which a
stream that has already shown them cannot.)
"""

from __future__ import annotations

from codecs import utf_8_decode
from collections.abc import Mapping, Sequence
from typing import Protocol

from cadence.text.pieces import PieceTables, TokenPieces

REPLACEMENT = "\ufffd"
_CHAR_BYTES = 4  # longest UTF-8 character
_WINDOW = 5  # prompt tokens that give the first output token its context, where tokens are decoded in windows
_MAX_HELD = 8  # tokens: a window that ends in U+FFFD for longer than this holds bad bytes, not half a character


class TokenDecoder(Protocol):
    """What detokenizers ask of a tokenizer."""

    @property
    def pieces(self) -> TokenPieces: ...

    @property
    def clean_up_spaces(self) -> bool: ...

    @property
    def skipped_ids(self) -> frozenset[int]: ...

    @property
    def added_token_ids(self) -> Mapping[int, str]: ...

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str: ...


class Detokenizer(Protocol):
    def append(self, token_ids: Sequence[int]) -> str:
        """The text these tokens add, without a last character that is not whole yet."""

    def flush(self) -> str:
        """What was held back. The request is over."""


class NullDetokenizer:
    """detokenize=False, or no tokenizer: tokens in, no text out."""

    def append(self, token_ids: Sequence[int]) -> str:
        return ""

    def flush(self) -> str:
        return ""


class IncrementalDetokenizer:
    """One request's text, by the method that suits its tokenizer.

    `spaces_between_special_tokens` matters only where the decoder joins tokens by spaces: False then writes special
    tokens that follow one another without spaces. Byte-level and sentencepiece decoders never add such spaces.
    """

    def __init__(
        self,
        tokenizer: TokenDecoder,
        prompt_token_ids: Sequence[int],
        skip_special_tokens: bool = True,
        spaces_between_special_tokens: bool = True,
    ) -> None:
        self._method: Detokenizer
        if tokenizer.pieces.additive and not tokenizer.clean_up_spaces:
            tables = tokenizer.pieces.skipping if skip_special_tokens else tokenizer.pieces.keeping
            self._method = PieceDetokenizer(tables, prompt_token_ids)
        else:
            joined = spaces_between_special_tokens or skip_special_tokens
            self._method = WindowDetokenizer(tokenizer, prompt_token_ids, skip_special_tokens, joined)

    def append(self, token_ids: Sequence[int]) -> str:
        return self._method.append(token_ids)

    def flush(self) -> str:
        return self._method.flush()


class PieceDetokenizer:
    """For decoders that work token by token: bytes are looked up, joined and read as UTF-8."""

    def __init__(self, tables: PieceTables, prompt_token_ids: Sequence[int]) -> None:
        self._inner = tables.inner
        self._first = tables.first
        self._tail = _unfinished_tail(tables, prompt_token_ids)  # bytes of a character that is not whole yet
        # What the tail reads as if it comes to nothing: that is the prompt's, not ours.
        self._prompt_tail = utf_8_decode(self._tail, "replace", True)[0]
        self._at_start = not any(self._inner[i] for i in prompt_token_ids)

    def append(self, token_ids: Sequence[int]) -> str:
        inner = self._inner
        data = self._tail + b"".join([inner[i] for i in token_ids])
        if self._at_start and data:
            data = self._begin(token_ids)
        text, used = utf_8_decode(data, "replace", False)
        self._tail = data[used:]
        if self._prompt_tail and text:
            text = self._leave_prompt(text)
        return text

    def flush(self) -> str:
        text, _ = utf_8_decode(self._tail, "replace", True)
        self._tail = b""
        return self._leave_prompt(text) if self._prompt_tail and text else text

    def _begin(self, token_ids: Sequence[int]) -> bytes:
        """The first token with text is written as the start of a text is."""
        self._at_start = False
        inner = self._inner
        index = next(n for n, i in enumerate(token_ids) if inner[i])
        return self._first[token_ids[index]] + b"".join([inner[i] for i in token_ids[index + 1 :]])

    def _leave_prompt(self, text: str) -> str:
        """A character begun in the prompt is ours once whole; its remains are not."""
        remains, self._prompt_tail = self._prompt_tail, ""
        return text.removeprefix(remains)


def _unfinished_tail(tables: PieceTables, token_ids: Sequence[int]) -> bytes:
    """The bytes at the end of the prompt that begin a character but do not finish it; at most three."""
    data = b""
    for token_id in reversed(token_ids):
        data = tables.inner[token_id] + data
        if len(data) >= _CHAR_BYTES:
            break
    _, used = utf_8_decode(data, "replace", False)
    return data[used:]


class WindowDetokenizer:
    """For any decoder: decodes a short window of tokens with and without the new ones; what differs is new.

    The window `_ids` begins with `_context` tokens whose text `_shown` is out already; those after them are held back.
    Tokens that give no text never enter it, or a window of them alone would be no context at all.
    """

    def __init__(
        self, tokenizer: TokenDecoder, prompt_token_ids: Sequence[int], skip_special_tokens: bool, joined: bool
    ) -> None:
        self._tokenizer = tokenizer
        self._joined = joined  # special tokens in a row are joined by the decoder as any others
        self._skipped = tokenizer.skipped_ids if skip_special_tokens else frozenset()
        self._ids = [i for i in prompt_token_ids if i not in self._skipped][-_WINDOW:]
        self._context = len(self._ids)
        self._shown = self._decode()
        self._after_added = bool(self._ids) and self._ids[-1] in tokenizer.added_token_ids

    def append(self, token_ids: Sequence[int]) -> str:
        return "".join([self._append_one(token_id) for token_id in token_ids])

    def flush(self) -> str:
        return self._release(self._decode())

    def _append_one(self, token_id: int) -> str:
        if token_id in self._skipped:
            return ""
        is_added = token_id in self._tokenizer.added_token_ids
        follows_added, self._after_added = self._after_added, is_added
        self._ids.append(token_id)
        text = self._decode()
        if is_added and follows_added and not self._joined:
            self._release(text)
            return self._tokenizer.added_token_ids[token_id]
        held = len(self._ids) - self._context
        if text.endswith(REPLACEMENT) and held <= _MAX_HELD:
            return ""
        return self._release(text)

    def _release(self, text: str) -> str:
        new = text[len(self._shown) :]
        self._ids = self._ids[self._context :][-_WINDOW:] or self._ids[-_WINDOW:]
        self._context = len(self._ids)
        self._shown = self._decode()
        return new

    def _decode(self) -> str:
        return self._tokenizer.decode(self._ids, skip_special_tokens=False)

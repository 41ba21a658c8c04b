"""The fewest tokens a text can become, from its size alone: what cannot fit the context is refused unread.

No token stands for more bytes than the longest piece of the vocabulary, as long as the way from text to tokens loses
nothing: every character comes out as a token or a part of one, and normalising shrinks text by a known factor at most.
Where that cannot be shown (unknown words that become one token, pre-tokenizers that drop white space, added tokens that
swallow it, normalisers of unknown effect) there is no bound; bytes that the vocabulary does not know are not counted.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tokenizers import Tokenizer as Backend
from tokenizers import models

from cadence.text.pieces import byte_level_alphabet

_NO_BOUND = math.inf
_CHUNK = 2**18  # characters
# NFC at most turns the 7 bytes of U+1FBE U+0308 U+0301 into the 2 of U+0390, NFD the 3 of U+212A into the 1 of K.
_NORMAL_FORMS = {"NFC": 4.0, "NFD": 3.0}
_LOSSLESS_SPLITS = ("ByteLevel", "Metaspace", "Digits", "UnicodeScripts", "FixedLength")
_SPLITS_BY_BEHAVIOUR = ("Split", "Punctuation")  # lossless unless they remove what they match

_BYTE_TOKENS = {f"<0x{byte:02X}>" for byte in range(256)}

Step = dict[str, Any]  # the state of a normaliser or pre-tokenizer


@dataclass(frozen=True, slots=True)
class TokenBound:
    bytes_per_token: float  # of UTF-8, at most; infinity = no bound
    lost: bytes = b""  # bytes that may become no token, as the vocabulary has none for them

    @staticmethod
    def of(backend: Backend) -> TokenBound:
        added = backend.get_added_tokens_decoder().values()
        normalizers = list(_steps(backend.normalizer, "normalizers"))
        splits = list(_steps(backend.pre_tokenizer, "pretokenizers"))
        if any(token.lstrip or token.rstrip for token in added) or not all(map(_keeps_text, splits)):
            return TokenBound(_NO_BOUND)
        byte_level = any(step["type"] == "ByteLevel" for step in (*normalizers, *splits))
        longest, lost = _byte_level_pieces(backend) if byte_level else _byte_fallback_pieces(backend)
        if lost and normalizers:  # what a normaliser makes of a text may be lost as well
            return TokenBound(_NO_BOUND)
        longest = max([longest, *(len(token.content.encode()) for token in added)])
        return TokenBound(longest * math.prod(map(_shrinkage, normalizers)), lost)

    def least_tokens(self, text: str, enough: int = sys.maxsize) -> int:
        """May stop to count at `enough` tokens."""
        if self.bytes_per_token == _NO_BOUND:
            return 0
        if not self.lost:
            return math.ceil(utf8_size(text) / self.bytes_per_token)
        kept = 0
        for start in range(0, len(text), _CHUNK):
            part = text[start : start + _CHUNK].encode("utf-8", "surrogatepass")
            kept += len(part.translate(None, self.lost))
            if kept >= enough * self.bytes_per_token:
                break
        return math.ceil(kept / self.bytes_per_token)


def utf8_size(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def _steps(part: Any, members: str) -> Iterator[Step]:
    """The members of a sequence, however nested; a single step; or none."""
    todo = [] if part is None else [json.loads(part.__getstate__())]
    while todo:
        step = todo.pop()
        if step["type"] == "Sequence":
            todo += step[members]
        else:
            yield step


def _keeps_text(step: Step) -> bool:
    if step["type"] in _SPLITS_BY_BEHAVIOUR:
        return bool(step["behavior"] != "Removed")
    return step["type"] in _LOSSLESS_SPLITS


def _shrinkage(step: Step) -> float:
    """Bytes before a normaliser per byte after it, at most."""
    kind = step["type"]
    if kind in ("Prepend", "ByteLevel"):
        return 1.0
    if kind == "Replace" and "String" in step["pattern"] and step["content"]:
        return max(1.0, len(step["pattern"]["String"].encode()) / len(step["content"].encode()))
    return _NORMAL_FORMS.get(kind, _NO_BOUND)


def _byte_level_pieces(backend: Backend) -> tuple[float, bytes]:
    """The length of the longest token, whose characters are bytes, and the bytes that are no token."""
    model = backend.model
    if not isinstance(model, models.BPE) or model.continuing_subword_prefix or model.end_of_word_suffix:
        return _NO_BOUND, b""
    vocab = backend.get_vocab(with_added_tokens=False)
    byte_of = byte_level_alphabet()
    return max(map(len, vocab)), bytes(byte for char, byte in byte_of.items() if char not in vocab)


def _byte_fallback_pieces(backend: Backend) -> tuple[float, bytes]:
    """The length of the longest token of a vocabulary that spells what it does not know in bytes."""
    model = backend.model
    if not isinstance(model, models.BPE) or not model.byte_fallback:
        return _NO_BOUND, b""
    vocab = backend.get_vocab(with_added_tokens=False)
    if model.continuing_subword_prefix or model.end_of_word_suffix or not vocab.keys() >= _BYTE_TOKENS:
        return _NO_BOUND, b""
    return max(len(piece.encode()) for piece in vocab), b""

"""What each token adds to the text, as bytes: the ground on which text is streamed.

The decoders of today's language models work token by token: the text is the concatenation of one byte string per
token, read as UTF-8; only the very first token may lose a leading space. Where that holds, `TokenPieces` gives the
byte strings, and detokenising one more token costs a dictionary look-up. Where it does not (WordPiece and its like),
`additive` is False and the detokeniser decodes a window of tokens instead.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tokenizers import Tokenizer as Backend
from tokenizers import pre_tokenizers

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>\Z")

ToBytes = Callable[[str], bytes]


@dataclass(frozen=True, slots=True)
class PieceRule:
    """How a token's string becomes bytes, and what happens to it at the very start of a text."""

    inner: ToBytes  # anywhere but at the start
    first: ToBytes  # at the start


class PieceTable(dict[int, bytes]):
    """Token id -> bytes, filled as tokens are met. Ids outside the vocabulary and skipped ids give b""."""

    def __init__(self, backend: Backend, to_bytes: ToBytes, skipped: frozenset[int]) -> None:
        super().__init__()
        self._backend = backend
        self._to_bytes = to_bytes
        self._skipped = skipped

    def __missing__(self, token_id: int) -> bytes:
        token = None if token_id in self._skipped else self._backend.id_to_token(int(token_id))
        piece = b"" if token is None else self._to_bytes(token)
        self[token_id] = piece
        return piece


@dataclass(frozen=True, slots=True)
class PieceTables:
    inner: PieceTable
    first: PieceTable


@dataclass(frozen=True, slots=True)
class TokenPieces:
    additive: bool  # False: the decoder is not of the kind described above, and the tables are empty
    skipping: PieceTables  # special tokens give b""
    keeping: PieceTables  # special tokens give their own text

    @staticmethod
    def of(backend: Backend, special_ids: frozenset[int]) -> TokenPieces:
        rule = piece_rule(backend.decoder)
        usable = rule or PieceRule(_nothing, _nothing)

        def tables(skipped: frozenset[int]) -> PieceTables:
            return PieceTables(PieceTable(backend, usable.inner, skipped), PieceTable(backend, usable.first, skipped))

        return TokenPieces(rule is not None, tables(special_ids), tables(frozenset()))


def piece_rule(decoder: Any) -> PieceRule | None:
    """The rule that equals `decoder`, or None when no per-token rule does."""
    if decoder is None:
        return None
    state = json.loads(decoder.__getstate__())
    steps = state["decoders"] if state["type"] == "Sequence" else [state]
    names = [step["type"] for step in steps]
    if names == ["ByteLevel"]:
        to_bytes = _byte_level()
        return PieceRule(to_bytes, to_bytes)
    if names == ["Metaspace"]:
        return _metaspace_rule(steps[0])
    return _sentencepiece_rule(steps)


def _nothing(_: str) -> bytes:
    return b""


def _byte_level() -> ToBytes:
    """Each byte is written as one printable character; a token with any other character stands for itself."""
    byte_of = byte_level_alphabet()

    def to_bytes(token: str) -> bytes:
        try:
            return bytes([byte_of[char] for char in token])
        except KeyError:
            return token.encode()

    return to_bytes


def byte_level_alphabet() -> dict[str, int]:
    """Printable Latin-1 bytes stand for themselves; the rest take code points from 256 on, in order."""
    own = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    moved = [byte for byte in range(256) if byte not in own]
    table = {chr(byte): byte for byte in own} | {chr(256 + i): byte for i, byte in enumerate(moved)}
    if table.keys() != set(pre_tokenizers.ByteLevel.alphabet()):
        raise AssertionError("the byte-level alphabet of tokenizers has changed")
    return table


def _metaspace_rule(step: dict[str, Any]) -> PieceRule:
    mark = step["replacement"]
    drop_at_start = step["prepend_scheme"] != "never"
    return PieceRule(
        inner=lambda token: token.replace(mark, " ").encode(),
        first=lambda token: token.replace(mark, "" if drop_at_start else " ").encode(),
    )


@dataclass(slots=True)
class _Steps:
    replacements: list[tuple[str, str]] = field(default_factory=list)
    byte_fallback: bool = False
    strip_start: bool = False


def _sentencepiece_rule(steps: list[dict[str, Any]]) -> PieceRule | None:
    """Replace..., ByteFallback, Fuse, Strip of at most one leading space: each part optional, in this order."""
    parts = _Steps()
    order = {"Replace": 0, "ByteFallback": 1, "Fuse": 2, "Strip": 3}
    ranks = [order.get(step["type"], -1) for step in steps]
    if -1 in ranks or ranks != sorted(ranks) or 2 not in ranks:
        return None
    for step in steps:
        if step["type"] == "Replace":
            if "String" not in step["pattern"]:
                return None
            parts.replacements.append((step["pattern"]["String"], step["content"]))
        elif step["type"] == "ByteFallback":
            parts.byte_fallback = True
        elif step["type"] == "Strip":
            if step["content"] != " " or step["start"] > 1 or step["stop"] > 0:
                return None
            parts.strip_start = step["start"] == 1
    inner = _sentencepiece_bytes(parts)
    first = (lambda token: inner(token).removeprefix(b" ")) if parts.strip_start else inner
    return PieceRule(inner, first)


def _sentencepiece_bytes(parts: _Steps) -> ToBytes:
    def to_bytes(token: str) -> bytes:
        for old, new in parts.replacements:
            token = token.replace(old, new)
        match = _BYTE_TOKEN.match(token) if parts.byte_fallback else None
        return bytes([int(match.group(1), 16)]) if match else token.encode()

    return to_bytes

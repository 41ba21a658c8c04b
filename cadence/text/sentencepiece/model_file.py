"""SentencePiece's model files: the few fields of their protocol buffer that a tokenizer needs.

A message is a list of fields: a number that holds (field << 3 | wire type), then the value. Wire types: 0 = a number of
seven bits per byte, 1 = eight bytes, 2 = a length and so many bytes, 5 = four bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

from cadence.config.files.json_file import read_bytes
from cadence.core.errors import TokenizerError

MOST_BYTES = 64 << 20  # the largest models of several hundred thousand pieces take 16 MB
_VARINT_BYTES = 10
_UNIGRAM, _BPE = 1, 2

Value = int | float | bytes


class PieceType(IntEnum):
    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True, slots=True)
class Piece:
    text: str
    score: float
    type: PieceType


@dataclass(frozen=True, slots=True)
class SentencePieceFile:
    """Pieces in the order of their ids, and how texts are normalised before."""

    pieces: list[Piece]
    charsmap: bytes  # replacements of characters, for `Charsmap`; b"" = none
    add_dummy_prefix: bool  # a text begins with a space
    remove_extra_whitespaces: bool
    merges: bool = False  # pieces are merged, best first, instead of chosen by their sum (unigrams)

    @property
    def unknown_id(self) -> int:
        return next(index for index, piece in enumerate(self.pieces) if piece.type is PieceType.UNKNOWN)

    def of_type(self, *types: PieceType) -> list[str]:
        return [piece.text for piece in self.pieces if piece.type in types]


def read_model_file(path: Path) -> SentencePieceFile:
    content = read_bytes(path, MOST_BYTES, TokenizerError)
    try:
        model = _model(content)
    except (ValueError, IndexError, struct.error) as error:  # UnicodeError is a ValueError
        raise TokenizerError(f"{path} is not a SentencePiece model: {error}") from None
    if not any(piece.type is PieceType.UNKNOWN for piece in model.pieces):
        raise TokenizerError(f"{path} has no piece for what is unknown")
    return model


def _model(content: bytes) -> SentencePieceFile:
    pieces: list[Piece] = []
    trainer: dict[int, Value] = {}
    normalizer: dict[int, Value] = {}
    for number, value in _fields(content):
        if number == 1:
            pieces.append(_piece(_message(value)))
        elif number == 2:
            trainer = _message(value)
        elif number == 3:
            normalizer = _message(value)
    kind = trainer.get(3, _UNIGRAM)
    if kind not in (_UNIGRAM, _BPE):
        raise ValueError("only models of unigrams or merges are supported (trainer_spec.model_type)")
    if trainer.get(24, 0):
        raise ValueError("spaces as suffixes are not supported (trainer_spec.treat_whitespace_as_suffix)")
    return SentencePieceFile(
        pieces=pieces,
        charsmap=_bytes(normalizer.get(2, b"")),
        add_dummy_prefix=bool(normalizer.get(3, 1)),
        remove_extra_whitespaces=bool(normalizer.get(4, 1)),
        merges=kind == _BPE,
    )


def _piece(fields: dict[int, Value]) -> Piece:
    score = fields.get(2, 0.0)
    if not isinstance(score, float):
        raise ValueError("a score is no number")
    return Piece(_bytes(fields.get(1, b"")).decode(), score, PieceType(fields.get(3, PieceType.NORMAL)))


def _message(value: Value) -> dict[int, Value]:
    """The last value of each field."""
    return dict(_fields(_bytes(value)))


def _bytes(value: Value) -> bytes:
    if not isinstance(value, bytes):
        raise ValueError("a field has another type than the format gives it")
    return value


def _fields(content: bytes) -> Iterator[tuple[int, Value]]:
    at = 0
    while at < len(content):
        key, at = _varint(content, at)
        wire = key & 7
        if wire == 0:
            number, at = _varint(content, at)
            yield key >> 3, number
        elif wire == 2:
            size, at = _varint(content, at)
            if at + size > len(content):
                raise ValueError("it ends in the middle of a field")
            yield key >> 3, content[at : at + size]
            at += size
        elif wire == 5:
            yield key >> 3, struct.unpack_from("<f", content, at)[0]
            at += 4
        elif wire == 1:
            yield key >> 3, struct.unpack_from("<d", content, at)[0]
            at += 8
        else:
            raise ValueError(f"wire type {wire}")


def _varint(content: bytes, at: int) -> tuple[int, int]:
    """The number at a place, and the place after it."""
    number = 0
    for shift in range(_VARINT_BYTES):
        byte = content[at + shift]
        number |= (byte & 0x7F) << (7 * shift)
        if byte < 0x80:
            return number, at + shift + 1
    raise ValueError("a number is too long")

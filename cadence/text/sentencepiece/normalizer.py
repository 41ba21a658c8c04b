"""What SentencePiece does to a text before it looks for pieces."""

from __future__ import annotations

import re
import struct
from array import array

from cadence.core.errors import TokenizerError
from cadence.text.sentencepiece.model_file import SentencePieceFile

MARK = "▁"  # stands for a space
_SPACES = re.compile(" +")


class Charsmap:
    """Replacements of strings by others; at each place of a text, the longest that is known.

    The strings are a double-array trie over UTF-8, four bytes per node: byte 0 = the label, bit 8 = a value follows,
    bits 9 to 30 = where the children begin, xor the node's own place. A value is where the replacement begins in the
    NUL-terminated strings after the trie.
    """

    def __init__(self, blob: bytes) -> None:
        (size,) = struct.unpack_from("<I", blob) if len(blob) >= 4 else (0,)
        if len(blob) < 4 or size % 4 or 4 + size > len(blob) or size < 4:
            raise TokenizerError("the charsmap of a SentencePiece model is cut short")
        self._units = array("I", blob[4 : 4 + size])
        self._replacements = blob[4 + size :]
        self._known: dict[int, bool] = {}  # first byte of a character -> whether a replacement begins with it

    def apply(self, text: str) -> str:
        content = text.encode("utf-8", "surrogatepass")
        parts: list[bytes] = []
        at = done = 0  # bytes before `done` are in `parts`
        while at < len(content):
            first = content[at]
            if self._begins(first):
                length, place = self._longest(content, at)
                if length:
                    end = self._replacements.find(b"\0", place)
                    parts += [content[done:at], self._replacements[place:end]]
                    at = done = at + length
                    continue
            at += _character_bytes(first)
        parts.append(content[done:])
        return b"".join(parts).decode("utf-8", "replace")

    def _begins(self, byte: int) -> bool:
        known = self._known.get(byte)
        if known is None:
            known = self._known[byte] = self._child(_offset(self._units[0]), byte) >= 0
        return known

    def _child(self, place: int, byte: int) -> int:
        """Where the node of this label lies; -1 where there is none."""
        place ^= byte
        if place >= len(self._units) or self._units[place] & 0x800000FF != byte:
            return -1
        return place

    def _longest(self, content: bytes, at: int) -> tuple[int, int]:
        """(bytes that are replaced, where the replacement begins); (0, 0) where there is none."""
        found = (0, 0)
        place = _offset(self._units[0])
        for index in range(at, len(content)):
            node = self._child(place, content[index])
            if node < 0:
                break
            unit = self._units[node]
            place = node ^ _offset(unit)
            if unit >> 8 & 1 and place < len(self._units):
                found = (index + 1 - at, self._units[place] & 0x7FFFFFFF)
        return found


class SentencePieceNormalizer:
    def __init__(self, model: SentencePieceFile) -> None:
        self._charsmap = Charsmap(model.charsmap) if model.charsmap else None
        self._trim = model.remove_extra_whitespaces
        self._prefix = MARK if model.add_dummy_prefix else ""

    def apply(self, text: str) -> str:
        """Spaces as marks; "" where nothing is left."""
        if self._charsmap is not None:
            text = self._charsmap.apply(text)
        if self._trim:
            text = _SPACES.sub(" ", text).strip(" ")
        return self._prefix + text.replace(" ", MARK) if text else ""


def _offset(unit: int) -> int:
    return (unit >> 10) << ((unit & 0x200) >> 6)


def _character_bytes(first: int) -> int:
    return 1 if first < 0x80 else 2 if first < 0xE0 else 3 if first < 0xF0 else 4

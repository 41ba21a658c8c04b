"""How much JSON a body may hold, counted before a parser makes objects of it.

Everything is done by the piece and by functions that run at the speed of memory, so that even the largest body that
is nothing but brackets, quotes or backslashes takes a few tens of milliseconds, and never one long call.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from cadence.config.server.serve_options import ServeOptions
from cadence.entrypoints.server.http.errors import ApiError

_PIECE = 2**18  # bytes
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))  # to be deleted
_STEPS_NP = np.zeros(256, dtype=np.int8)  # what a byte does to the depth
_STEPS_NP[list(b"[{")] = 1
_STEPS_NP[list(b"]}")] = -1

# An object, an array or a name of a member takes a parser five times as long as a number or a string.
MEMBER_SHARE = 5


@dataclass(frozen=True, slots=True)
class JsonLimits:
    max_depth: int
    max_values: int

    @classmethod
    def of(cls, options: ServeOptions) -> JsonLimits:
        return cls(options.max_json_depth, options.max_json_values)

    @property
    def max_members(self) -> int:
        return max(1, self.max_values // MEMBER_SHARE)


def check_json(body: bytes, limits: JsonLimits) -> None:
    """Raises where a parser would have too much to do. What is no JSON at all may pass: the parser says so."""
    values, members, depth = 1, 0, _Depth(limits.max_depth)
    max_strings = limits.max_values + limits.max_members
    for piece in outside_strings(body, max_strings):
        opened = piece.count(b"[") + piece.count(b"{")
        members += opened + piece.count(b":")
        values += opened + piece.count(b",")
        if values > limits.max_values:
            raise _too_many(f"{limits.max_values} values")
        if members > limits.max_members:
            raise _too_many(f"{limits.max_members} objects, arrays and names")
        if members > limits.max_depth:
            depth.read(piece)
        else:
            depth.now += opened - piece.count(b"]") - piece.count(b"}")


def outside_strings(body: bytes, max_strings: int) -> Iterator[bytes]:
    """The body piece by piece, without its strings. Exact for JSON; what is none ends a parser before it matters."""
    quotes, half = 0, b""  # half = a backslash whose other half is in the next piece
    for start in range(0, len(body), _PIECE):
        piece = half + body[start : start + _PIECE]
        half = b"\\" if (len(piece) - len(piece.rstrip(b"\\"))) % 2 else b""
        piece = piece.removesuffix(half)
        if b"\\" in piece:  # pairs first: what is left then escapes what follows it
            piece = piece.replace(b"\\\\", b"").replace(b'\\"', b"")
        texts = piece.split(b'"')
        yield b"".join(texts[quotes % 2 :: 2])
        quotes += len(texts) - 1
        if quotes // 2 > max_strings:
            raise _too_many(f"{max_strings} strings")


class _Depth:
    """Nesting so far."""

    def __init__(self, limit: int) -> None:
        self.now = 0
        self._limit = limit

    def read(self, piece: bytes) -> None:
        brackets_np = np.frombuffer(piece.translate(None, _NO_BRACKETS), dtype=np.uint8)
        if not len(brackets_np):
            return
        depths_np = np.cumsum(_STEPS_NP[brackets_np], dtype=np.int64) + self.now
        if depths_np.max() > self._limit:
            message = f"The request body is nested more than {self._limit} levels deep."
            raise ApiError(400, message, code="too_deeply_nested")
        self.now = int(depths_np[-1])


def _too_many(limit: str) -> ApiError:
    message = f"The request body's JSON holds more than the limit of {limit}."
    return ApiError(400, message, code="too_many_values")

"""Values and bodies of many bytes: `make(size)` gives JSON text of about that size, never more."""

from __future__ import annotations

import random
from collections.abc import Callable

LIMIT = 16 * 2**20  # bytes: the server's default limit of a body
ROOM = 4096  # bytes that the rest of a body may take
SMALLEST = 64 * 2**10

_WORDS = b"the quick brown fox jumps over the lazy dog 12345 "


def _string(unit: bytes) -> Callable[[int], bytes]:
    return lambda size: b'"' + unit * ((size - 2) // len(unit)) + b'"'


def _list(item: bytes) -> Callable[[int], bytes]:
    return lambda size: b"[" + (item + b",") * ((size - 2) // (len(item) + 1) - 1) + item + b"]"


def _object(size: int) -> bytes:
    count = size // 16
    return (
        b"{" + b",".join(b'"%08x":%d' % (n, n % 10) for n in range(count))[: count * 13 - 1].rsplit(b",", 1)[0] + b"}"
    )


def _nested(opening: bytes, middle: bytes, closing: bytes) -> Callable[[int], bytes]:
    def make(size: int) -> bytes:
        depth = (size - len(middle)) // (len(opening) + len(closing))
        return opening * depth + middle + closing * depth

    return make


# name -> JSON text of a size
VALUES: dict[str, Callable[[int], bytes]] = {
    "one character": _string(b"a"),
    "spaces": _string(b" "),
    "words": _string(_WORDS),
    "newlines": _string(b"\\n"),
    "digits in a string": _string(b"9"),
    "combining marks": _string("\u0301".encode()),
    "emoji": _string("\U0001f468\u200d".encode()),
    "escaped emoji": _string(b"\\ud83d\\ude00"),
    "escapes": _string(b"\\u0041"),
    "special tokens": _string(b"<|end|>"),
    "accents": _string("é".encode()),
    "chinese": _string("永".encode()),
    "backslashes": _string(b"\\\\"),
    "digits": lambda size: b"9" * size,
    "fraction": lambda size: b"0." + b"3" * (size - 2),
    "zeros": _list(b"0"),
    "ids": _list(b"77"),
    "nulls": _list(b"null"),
    "empty strings": _list(b'""'),
    "letters": _list(b'"a"'),
    "lists": _list(b"[]"),
    "lists of ids": _list(b"[7]"),
    "objects": _list(b"{}"),
    "messages": _list(b'{"role":"user","content":"a"}'),
    "text parts": _list(b'{"type":"text","text":"a"}'),
    "floats": _list(b"1.5"),
    "wide object": _object,
    "same key": lambda size: b"{" + b'"a":1,' * ((size - 10) // 6) + b'"a":1}',
    "long key": lambda size: b'{"' + b"k" * (size - 8) + b'":1}',
    "deep list": _nested(b"[", b"", b"]"),
    "deep object": _nested(b'{"a":', b"1", b"}"),
    "many deep lists": _list(b"[[[[[[[[[[[[[[[[]]]]]]]]]]]]]]]]"),
    "white space between": lambda size: b"[" + b" " * (size - 3) + b"1]",
    "messages of words": lambda size: b'[{"role":"user","content":"' + _WORDS * ((size - 40) // len(_WORDS)) + b'"}]',
    "message of a character": lambda size: b'[{"role":"user","content":"' + b"a" * (size - 40) + b'"}]',
}

# name -> a whole body of a size
BODIES: dict[str, Callable[[int], bytes]] = {
    "unknown key": lambda size: b'{"' + b"k" * (size - 8) + b'":1}',
    "many unknown keys": _object,
    "key near a known one": lambda size: b'{"promptt' + b"t" * (size - 16) + b'":"a"}',
    "only white space": lambda size: b" " * size,
    "only brackets": lambda size: b"[" * size,
    "only quotes": lambda size: b'"' * size,
    "only backslashes": lambda size: b'{"prompt":"' + b"\\" * (size - 11),
    "zero bytes": lambda size: b"\0" * size,
    "random bytes": lambda size: random.Random(size).randbytes(size),
    "not utf-8 at the end": lambda size: b'{"prompt":"' + b"a" * (size - 14) + b'\xff"}',
    "half a surrogate at the end": lambda size: b'{"prompt":"' + b"a" * (size - 20) + b'\\ud800"}',
    "surrogate halves": lambda size: b'{"prompt":"' + b"\\ud83d\\ude00" * ((size - 13) // 12) + b'"}',
    "garbage after": lambda size: b'{"prompt":"a"}' + b"x" * (size - 14),
    "many objects": lambda size: b'{"prompt":"a"}' * (size // 14),
    "a list": _list(b'{"prompt":"a"}'),
    "a string": _string(b"a"),
    "a number": lambda size: b"9" * size,
    "doubled prompt": lambda size: b'{"prompt":"%b","prompt":"b"}' % (b"a" * (size - 40)),
}  # fmt: skip


def draw_size(rng: random.Random) -> int:
    """From SMALLEST to the limit, each doubling as likely as the next; the limit itself now and then."""
    if rng.random() < 0.1:
        return LIMIT - ROOM
    return int(SMALLEST * ((LIMIT - ROOM) / SMALLEST) ** rng.random())

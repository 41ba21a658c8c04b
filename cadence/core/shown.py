"""Values in messages: those of untrusted files in one line of bounded length, and counts of things."""

from __future__ import annotations

import reprlib

_short = reprlib.Repr()
_short.maxstring = _short.maxother = _short.maxlong = 60
_short.maxlevel = 2


def shown(value: object) -> str:
    """A value in a message, however large it is."""
    return cut(_short.repr(value))


def cut(text: str, most: int = 200) -> str:
    """One line of bounded length."""
    line = " ".join(text[: 4 * most].split())
    return line if len(line) <= most else line[:most] + " …"


def counted(count: int, thing: str) -> str:
    """1 thread, 2 threads"""
    return f"{count} {thing}" if count == 1 else f"{count} {thing}s"

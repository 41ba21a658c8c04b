"""How much a chat template may do, and the errors that say it wanted more."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from jinja2.exceptions import TemplateRuntimeError

_MAX_WIDTH = 100_000  # widths, counts and indents given to filters and string methods
_WIDE_FORMAT = re.compile(r"[%{:][^%{}:a-zA-Z]*\d{6}|%[^%{}a-zA-Z]*\*|\{[^{}]*\{[^{]")  # wide, or width from outside


class LimitError(TemplateRuntimeError):
    """The template asked for more than it may have."""


class RaisedError(TemplateRuntimeError):
    """The template itself refused its input, by `raise_exception`."""


@dataclass(frozen=True, slots=True)
class TemplateLimits:
    max_chars: int = 32_000_000  # of the output, and of any one value on the way
    max_ticks: int = 2_000_000  # loop iterations and macro calls
    max_seconds: float = 10.0


class Budget:
    """What one rendering has left."""

    def __init__(self, limits: TemplateLimits) -> None:
        self._limits = limits
        self._ticks = limits.max_ticks
        self._chars = limits.max_chars
        self._deadline = time.monotonic() + limits.max_seconds

    def tick(self) -> None:
        self._ticks -= 1
        if self._ticks < 0:
            raise LimitError(f"it ran more than {self._limits.max_ticks} loop iterations and macro calls")
        if time.monotonic() > self._deadline:
            raise LimitError(f"it ran longer than {self._limits.max_seconds:g} seconds")

    def charge(self, chars: int) -> None:
        self._chars -= chars
        if self._chars < 0:
            raise LimitError(f"it wrote more than {self._limits.max_chars} characters")


class SizeGuard:
    """Looks at what an operation would make, before it is made. Lengths are characters or items."""

    def __init__(self, limits: TemplateLimits) -> None:
        self._max = limits.max_chars

    def length(self, length: int) -> None:
        if length > self._max:
            raise LimitError(f"it made a value of more than {self._max} characters or items")

    def repeat(self, left: Any, right: Any) -> None:
        for value, count in ((left, right), (right, left)):
            if isinstance(count, int):
                self.length(shallow_length(value) * count)

    def power(self, base: Any, exponent: Any) -> None:
        if isinstance(base, int) and isinstance(exponent, int):
            self.length(base.bit_length() * max(exponent, 0))

    def join(self, separator: str, items: Iterable[Any]) -> None:
        if isinstance(items, list | tuple):
            self.length(sum(shallow_length(item) for item in items) + len(separator) * len(items))

    def replace(self, text: str, old: Any, new: Any) -> None:
        if isinstance(old, str) and isinstance(new, str):
            self.length(len(text) + text.count(old) * len(new))

    def deep(self, value: Any) -> None:
        """A container about to be written out: the same long string may be in it many times."""
        left = self._max
        todo = [value]
        while todo:
            item = todo.pop()
            left -= shallow_length(item) + 1
            if left < 0:
                self.length(self._max + 1)
            if isinstance(item, dict):
                todo += [*item.keys(), *item.values()]
            elif isinstance(item, list | tuple):
                todo += item


def shallow_length(value: Any) -> int:
    return len(value) if isinstance(value, str | list | tuple | dict) else 0


def check_widths(values: Iterable[Any]) -> None:
    for value in values:
        if isinstance(value, int) and abs(value) > _MAX_WIDTH:
            raise LimitError(f"it gave the number {value} to a filter or method; at most {_MAX_WIDTH} is allowed")


def check_format(pattern: str) -> None:
    if _WIDE_FORMAT.search(pattern):
        raise LimitError(f"it used a format whose field may be too wide: {pattern[:80]!r}")

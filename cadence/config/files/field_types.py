"""What a field of a file may be: a type and a range, and how a value that fits is read."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Protocol

MOST_ID = 2**31 - 1
MOST_ITEMS = 1 << 16  # of a list
_MOST_CHARS = 256  # of a name


class FieldType(Protocol):
    @property
    def expected(self) -> str:
        """What the field must be, as a message says it."""
        ...

    def read(self, value: Any) -> Any:
        """The value as code expects it; ValueError where it is another kind of thing."""
        ...


@dataclass(frozen=True, slots=True)
class Integer:
    low: int
    high: int

    @property
    def expected(self) -> str:
        return f"a whole number between {self.low} and {self.high}"

    def read(self, value: Any) -> int:
        if isinstance(value, float) and value.is_integer():  # 4096.0
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool) or not self.low <= value <= self.high:
            raise ValueError
        return value


@dataclass(frozen=True, slots=True)
class Number:
    low: float  # not itself allowed, unless it is 0 and `zero` says so
    high: float
    zero: bool = False

    @property
    def expected(self) -> str:
        return f"a number {'from' if self.zero else 'above'} {self.low:g} to {self.high:g}"

    def read(self, value: Any) -> float:
        if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
            raise ValueError
        if not (self.low < value <= self.high or (self.zero and value == 0)):
            raise ValueError
        return value


@dataclass(frozen=True, slots=True)
class Boolean:
    expected: str = "true or false"

    def read(self, value: Any) -> bool:
        if value not in (True, False):  # 0 and 1 as well
            raise ValueError
        return bool(value)


@dataclass(frozen=True, slots=True)
class String:
    expected: str = f"a text of at most {_MOST_CHARS} characters"

    def read(self, value: Any) -> str:
        if not isinstance(value, str) or len(value) > _MOST_CHARS:
            raise ValueError
        return value


@dataclass(frozen=True, slots=True)
class ListOf:
    item: FieldType

    @property
    def expected(self) -> str:
        return f"a list, each entry {self.item.expected}"

    def read(self, value: Any) -> list[Any]:
        if not isinstance(value, list) or len(value) > MOST_ITEMS:
            raise ValueError
        return [self.item.read(entry) for entry in value]


@dataclass(frozen=True, slots=True)
class OneOrListOf:
    item: FieldType

    @property
    def expected(self) -> str:
        return f"{self.item.expected}, or a list of such"

    def read(self, value: Any) -> Any:
        return ListOf(self.item).read(value) if isinstance(value, list) else self.item.read(value)


@dataclass(frozen=True, slots=True)
class Nullable:
    """A field that may be null, beside what else it may be."""

    other: FieldType

    @property
    def expected(self) -> str:
        return f"{self.other.expected}, or null"

    def read(self, value: Any) -> Any:
        return None if value is None else self.other.read(value)


@dataclass(frozen=True, slots=True)
class Limit:
    """A number from 0 up, or no limit, in one of the spellings that files have for it."""

    expected: str = "a number from 0 up, or Infinity"

    def read(self, value: Any) -> float:
        value = value.get("__float__") if isinstance(value, dict) else value
        value = math.inf if value == "Infinity" else value
        if not isinstance(value, int | float) or isinstance(value, bool) or not value >= 0:
            raise ValueError
        return float(value)


@dataclass(frozen=True, slots=True)
class EitherOf:
    """A field of one type or another."""

    one: FieldType
    other: FieldType

    @property
    def expected(self) -> str:
        return f"{self.one.expected}, or {self.other.expected}"

    def read(self, value: Any) -> Any:
        try:
            return self.one.read(value)
        except ValueError:
            return self.other.read(value)

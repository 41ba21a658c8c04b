"""A flag that vLLM's users carry over, and whether it works here, has no effect, or is refused.

A value that asks for nothing (the default over there) is taken in silence, whatever the flag. All others are never
ignored in silence: what has no effect is named with the reason, and what would break a promise is an error.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any

from cadence.core.errors import ConfigError


class Support(enum.Enum):
    WORKS = "works"
    NO_EFFECT = "has no effect"
    REFUSED = "refused"


class FlagKind(enum.Enum):
    """How the flag is written on a command line."""

    VALUE = "value"  # --flag VALUE
    SWITCH = "switch"  # --flag, --no-flag
    OBJECT = "object"  # --flag JSON, --flag.key VALUE
    LIST = "list"  # --flag A B, --flag A --flag B


@dataclass(frozen=True, slots=True)
class PeerFlag:
    name: str  # with underscores
    support: Support
    why: str = ""  # why it has no effect or is refused; of one that works: what is different here
    neutral: tuple[Any, ...] = ()  # values that ask for nothing, as None and empty texts and containers always do
    hints: tuple[str, ...] = ()  # values that have no effect, of a flag that works or is refused otherwise
    choices: tuple[str, ...] = ()  # all values there are, where that is known
    kind: FlagKind = FlagKind.VALUE
    short: str = ""  # -tp
    means: str = ""  # the option whose place it takes: "hf_overrides.rope_theta"

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    def asks_for_nothing(self, value: object) -> bool:
        empty = value is None or (not value and not isinstance(value, (bool, int, float)))
        return empty or any(_same(value, neutral) for neutral in self.neutral)

    def notice(self, value: object) -> str:
        """What to tell the user of a value that changes nothing; "" = nothing. ConfigError where it is refused."""
        if self.asks_for_nothing(value):
            return ""
        if self.choices and str(value) not in (*self.choices, *self.hints):
            raise ConfigError(f"{self.name}={value!r} is not one of {', '.join(self.choices)}", self.name)
        if self.support is Support.REFUSED and value not in self.hints:
            raise ConfigError(f"{self.name}={value!r} cannot be honoured: {self.why}", self.name)
        return f"{self.name}={_shown(value)} has no effect here: {self.why}"


@dataclass(frozen=True, slots=True)
class Group:
    title: str  # as vLLM's help calls it
    flags: tuple[PeerFlag, ...]


def works(name: str, note: str = "", **more: Any) -> PeerFlag:
    """An option of ours by the same name: its type, default and help are in `EngineArgs` or `ServeOptions`."""
    return PeerFlag(name, Support.WORKS, note, **more)


def no_effect(name: str, neutral: Any, why: str, **more: Any) -> PeerFlag:
    """`neutral`: the value, or a tuple of values, that asks for nothing. Its type says how the flag is written."""
    return _other(name, Support.NO_EFFECT, neutral, why, more)


def refused(name: str, neutral: Any, why: str, **more: Any) -> PeerFlag:
    return _other(name, Support.REFUSED, neutral, why, more)


def _other(name: str, support: Support, neutral: Any, why: str, more: dict[str, Any]) -> PeerFlag:
    values = neutral if isinstance(neutral, tuple) else (neutral,)
    return PeerFlag(name, support, why, values, **{"kind": _kind(values), **more})


def _kind(values: tuple[Any, ...]) -> FlagKind:
    kinds: dict[type, FlagKind] = {bool: FlagKind.SWITCH, dict: FlagKind.OBJECT, list: FlagKind.LIST}
    return next((kinds[type(value)] for value in values if type(value) in kinds), FlagKind.VALUE)


def _same(value: object, neutral: object) -> bool:
    """True is not 1, and 0.0 is 0."""
    if isinstance(value, bool) or isinstance(neutral, bool):
        return value is neutral
    return value == neutral and (type(value) is type(neutral) or isinstance(value, (int, float)))


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:59] + "…"

"""Numbers of an adapter by the modules they are for: `rank_pattern` and `alpha_pattern`.

A key is the end of a module's name, in whole components ("q_proj", "layers.0.self_attn.q_proj"), or a regular
expression for such an end. The first that fits counts. Names are looked up, and expressions matched in linear time:
files are untrusted, and matching happens beside forwards.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from cadence.core.errors import AdapterError
from cadence.core.linear_pattern import LinearPattern
from cadence.core.shown import shown

MOST_KEYS = 1 << 16
MOST_STATES = 2048  # of all expressions of one field together
MOST_NAME = 256  # characters of a key
_NAME = re.compile(r"\w+(?:\.\w+)*")


class ModulePatterns:
    def __init__(self, path: Path, field: str, numbers: Mapping[str, float]) -> None:
        """path, field: where they stand, for errors"""
        self._numbers = list(numbers.values())
        self._names: dict[str, int] = {}  # each key's place among them
        self._patterns: list[tuple[int, LinearPattern]] = []
        states = 0
        for place, key in enumerate(numbers):
            if len(key) > MOST_NAME:
                raise AdapterError(f"{path}: {field!r} has {shown(key)}; a key has at most {MOST_NAME} characters")
            if _NAME.fullmatch(key):
                self._names[key] = place
                continue
            pattern = _compiled(path, field, key)
            self._patterns.append((place, pattern))
            states += pattern.num_states
            if states > MOST_STATES:
                limit = f"at most {MOST_STATES} states together, repetitions counted as often as they repeat"
                raise AdapterError(f"{path}: {field!r} has too many regular expressions: {limit}")

    def number_for(self, module: str) -> float | None:
        """None: no key fits."""
        parts = module.split(".")
        ends = (".".join(parts[first:]) for first in range(len(parts)))
        best = min((self._names[end] for end in ends if end in self._names), default=len(self._numbers))
        for place, pattern in self._patterns:
            if place >= best:
                break
            if pattern.match(module):
                return self._numbers[place]
        return self._numbers[best] if best < len(self._numbers) else None


def _compiled(path: Path, field: str, key: str) -> LinearPattern:
    try:
        return LinearPattern(rf"(.*\.)?({key})$")
    except ValueError as error:
        raise AdapterError(f"{path}: {field!r}: {error}") from None

"""What became of every request of a soak. A request is lost when it ends with neither an answer nor an error."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

_KEPT = 20  # examples of what went wrong


@dataclass
class Ledger:
    right: int = 0  # answered with the tokens of a solo run
    wrong: int = 0  # answered with others
    lost: int = 0  # no answer, half an answer, or none in time
    left: int = 0  # by the client itself
    refused: int = 0  # 429, and asked again
    errors: Counter[str] = field(default_factory=Counter)  # by status and code
    hostile: int = 0  # requests of the generator
    hostile_problems: int = 0
    examples: list[str] = field(default_factory=list)

    def example(self, text: str) -> None:
        if len(self.examples) < _KEPT:
            self.examples.append(text[:500])

    def figures(self) -> dict[str, Any]:
        return {
            "asked": self.right + self.wrong + self.lost + self.left + self.errors.total(),
            "right": self.right,
            "wrong": self.wrong,
            "lost": self.lost,
            "left by the client": self.left,
            "errors": dict(self.errors),
            "refused and asked again": self.refused,
            "hostile": self.hostile,
            "hostile with a problem": self.hostile_problems,
            "examples": self.examples,
        }

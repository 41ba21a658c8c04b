"""Prompts for the model to answer: templates whose places are filled with topics, sentences, passages, tasks.

Training and held-out prompts never meet: of every long list some values are kept for held-out prompts alone, and of all
prompts that can be made, a checksum says to which of the two they belong.
"""

from __future__ import annotations

import random
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

DATA = Path(__file__).with_name("data")
HELD_OUT = 12  # one value, and one prompt, of so many is held out
_LONG = 2 * HELD_OUT  # values of a list of which some are kept apart
_PLACE = re.compile(r"\{(\w+)\}")
_TRIES = 50  # for each prompt that is not a repetition

Turns = tuple[str, ...]  # what the user says, one after another; the model answers each
Sections = dict[str, list[str]]


@dataclass(frozen=True)
class PromptMaker:
    templates: Sections  # by kind
    values: Sections  # by the name of a place

    def draw(self, rng: random.Random) -> Turns:
        kind = rng.choice(list(self.templates))
        template = rng.choice(self.templates[kind]).replace("\\n", "\n")
        return tuple(turn.strip() for turn in _PLACE.sub(lambda m: self._value(m[1], rng), template).split("||"))

    def _value(self, place: str, rng: random.Random) -> str:
        if place == "number":
            return str(rng.randint(13, 999))
        return str(rng.randint(2, 12)) if place == "small" else rng.choice(self.values[place])


def prompts(count: int, *, held_out: bool = False, seed: int = 0) -> list[Turns]:
    """So many different ones, the same for the same arguments, in no order."""
    values = read_sections(DATA / "slots.txt") | {"passage": read_passages(DATA / "passages.txt")}
    parts = {place: _part(listed, held_out) for place, listed in values.items()}
    maker = PromptMaker(read_sections(DATA / "templates.txt"), parts)
    rng = random.Random(f"{seed} {held_out}")
    found: dict[Turns, None] = {}
    for _ in range(_TRIES * count):
        if len(found) == count:
            return list(found)
        turns = maker.draw(rng)
        if _is_held_out(turns) == held_out:
            found[turns] = None
    raise ValueError(f"only {len(found)} of {count} prompts could be made")


def read_sections(path: Path) -> Sections:
    """Headings `[name]`, a value per line; # begins a comment."""
    sections: Sections = {}
    for line in _lines(path):
        if line.startswith("["):
            values = sections.setdefault(line.strip("[]"), [])
        elif line:
            values.append(line)
    return sections


def read_passages(path: Path) -> list[str]:
    return [line for line in _lines(path) if line]


def _lines(path: Path) -> Iterator[str]:
    lines = path.read_text(encoding="utf-8").splitlines()
    return (line.strip() for line in lines if not line.startswith("#"))


def _part(values: list[str], held_out: bool) -> list[str]:
    """Those of a long list that are for training, or the others; all of a short one."""
    if len(values) < _LONG:
        return values
    return [value for index, value in enumerate(values) if (index % HELD_OUT == HELD_OUT // 2) == held_out]


def _is_held_out(turns: Turns) -> bool:
    return zlib.crc32("\n".join(turns).encode()) % HELD_OUT == 0

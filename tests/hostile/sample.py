"""A few generated cases that stand for many: every generator on every endpoint, every field, every kind of wrong."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from tests.hostile.case import Case
from tests.hostile.cases import ROUND, Cases
from tests.hostile.values import fixed

_GENERATORS = ((20, "one field"), (29, "several fields"), (32, "body"), (33, "framing"), (34, "headers"),
               (36, "target"), (39, "left"), (ROUND, "large"))  # fmt: skip
_KINDS = {value.name: value.kind for value in fixed()}


def sample(cases: Cases) -> list[int]:
    """Numbers of cases, of those in which every field has its turn, that have among them all the traits of these; small
    ones, if possible."""
    made = (cases.case(number) for number in range(cases.one_turn))
    found = {case.number: (set(traits_of(case)), -len(case.request.body)) for case in made}
    missing = set().union(*(traits for traits, _ in found.values()))
    chosen = []
    while missing:
        best = max(found, key=lambda number: (len(found[number][0] & missing), found[number][1], -number))
        missing -= found.pop(best)[0]
        chosen.append(best)
    return sorted(chosen)


def traits_of(case: Case) -> Iterator[tuple[str, ...]]:
    generator = next(name for end, name in _GENERATORS if case.number % ROUND < end)
    method, path, *_ = case.name.split(" ")
    rest = case.name[len(method) + len(path) + 2 :]
    folder = re.split(r"[/?]", path)[1]
    yield generator, method, folder if generator == "target" else path
    if generator == "one field":
        slot, _, value = rest.partition(" = ")
        yield "field", re.split(r"[.\[]", slot)[0]
        yield "value", _KINDS.get(value, "near a limit or of another field")
    elif generator == "headers":
        yield "header", rest.split()[1].partition("=")[0]
    elif generator not in ("several fields", "target"):
        yield generator, *_told(rest)


def _told(rest: str) -> Iterable[str]:
    """What is wrong, without numbers and values."""
    return re.findall(r"[a-z-]+", re.sub(r"'.*?'|.* = ", "", rest))[:4]

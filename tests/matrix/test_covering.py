"""Few engines with many features cover all pairs, and one that differs is narrowed to the features that make it."""

from __future__ import annotations

import random
from itertools import combinations

import pytest

from tests.matrix.covering import covered, covering
from tests.matrix.features import DULLED_BY, ENGINE, ONE_OR_OTHER
from tests.matrix.narrow import narrowed
from tests.matrix.points import MANY, PAIRS

NAMES = tuple(feature.name for feature in ENGINE)


def test_engines_cover_every_pair() -> None:
    pairs = {pair for point in MANY for pair in combinations(point, 2)}
    assert pairs == {*PAIRS} and not pairs & {*ONE_OR_OTHER}
    assert set().union(*(covered(point, DULLED_BY) for point in MANY)) == {*PAIRS}
    assert len(MANY) <= len(PAIRS) // 4


@pytest.mark.parametrize("seed", range(20))
def test_any_features_are_covered(seed: int) -> None:
    rng = random.Random(seed)
    names = [f"feature {index}" for index in range(rng.randrange(2, 12))]
    pairs = [*combinations(names, 2)]
    forbidden = set(rng.sample(pairs, len(pairs) // 5))
    dulled_by = {name: frozenset(rng.sample(names, len(names) // 4)) - {name} for name in names}
    points = covering(names, forbidden, dulled_by)
    assert points == covering(names, forbidden, dulled_by), "the same each time"
    assert all(list(point) == sorted(point, key=names.index) for point in points)
    assert not forbidden & {pair for point in points for pair in combinations(point, 2)}
    assert set().union(*(covered(point, dulled_by) for point in points)) == set(pairs) - forbidden


@pytest.mark.parametrize("guilty", [NAMES[3:4], NAMES[:1], (NAMES[0], NAMES[5]), (NAMES[2], NAMES[6], NAMES[7]), ()])
def test_an_engine_that_differs_is_narrowed(guilty: tuple[str, ...]) -> None:
    tried = []

    def differs(few: tuple[str, ...]) -> bool:
        tried.append(few)
        return {*guilty} <= {*few}

    for point in (NAMES[:8], guilty or NAMES[:1]):
        tried.clear()
        assert narrowed(point, differs) == (guilty or narrowed(point, differs)[:1])
        assert len(tried) <= 40 and () not in tried


def test_narrowing_ends() -> None:
    """Whatever differs, and even where nothing but the whole does."""
    for most in range(6):
        tried = []
        found = narrowed(NAMES, lambda few, tried=tried: tried.append(few) or "abort" in few, most)
        assert len(tried) <= most and "abort" in found
    assert narrowed(NAMES, lambda few: False) == NAMES

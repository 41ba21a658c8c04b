"""A covering array: few sets of features in which every two that go together are together at least once."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import combinations

Pair = tuple[str, str]
NOTHING: frozenset[str] = frozenset()


def covering(
    names: Sequence[str], forbidden: Collection[Pair], dulled_by: Mapping[str, frozenset[str]]
) -> list[tuple[str, ...]]:
    """Greedy and deterministic. forbidden: pairs that no set has; dulled_by: features beside which one shows less. A
    pair counts only in a set where no third feature dulls one of the two."""
    wanted = [pair for pair in combinations(names, 2) if pair not in forbidden]
    left, chosen = set(wanted), []
    while left:
        grown = _grown(next(pair for pair in wanted if pair in left), left, names, forbidden, dulled_by)
        left -= covered(grown, dulled_by)
        chosen.append(grown)
    return chosen


def covered(point: Sequence[str], dulled_by: Mapping[str, frozenset[str]]) -> set[Pair]:
    """The pairs of a set that nothing else in it dulls."""
    return {
        (one, other)
        for one, other in combinations(point, 2)
        if not (dulled_by.get(one, NOTHING) | dulled_by.get(other, NOTHING)) & ({*point} - {one, other})
    }


def _grown(
    seed: Pair,
    left: set[Pair],
    names: Sequence[str],
    forbidden: Collection[Pair],
    dulled_by: Mapping[str, frozenset[str]],
) -> tuple[str, ...]:
    """The seed and, one by one, the feature with which most pairs that are left are covered."""
    point: tuple[str, ...] = seed
    while True:
        larger = [tuple(name for name in names if name in point or name == new) for new in names if new not in point]
        allowed = [each for each in larger if not {*combinations(each, 2)} & {*forbidden}]
        best = max(allowed, key=lambda each: len(covered(each, dulled_by) & left), default=point)
        if len(covered(best, dulled_by) & left) <= len(covered(point, dulled_by) & left):
            return point
        point = best

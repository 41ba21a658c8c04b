"""Which features of an engine make it differ: as few of them as still do."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations

MOST_ENGINES = 20


def narrowed(
    point: tuple[str, ...], differs: Callable[[tuple[str, ...]], bool], most: int = MOST_ENGINES
) -> tuple[str, ...]:
    """A smallest set of the features of `point`, which differs itself, that was found to differ with `most` further
    runs. Halves first, then one feature less at a time; what is left of the runs goes to pairs of a larger set."""
    runs = 0

    def still(few: tuple[str, ...]) -> bool:
        nonlocal runs
        runs += 1
        return runs <= most and differs(few)

    found = _shorter(point, still)
    if len(found) > 2:
        found = next((pair for pair in combinations(found, 2) if still(pair)), found)
    return found


def _shorter(point: tuple[str, ...], still: Callable[[tuple[str, ...]], bool]) -> tuple[str, ...]:
    """Delta debugging: leaves out parts that are not needed, large ones first."""
    size = len(point) // 2
    while size:
        parts = [point[start : start + size] for start in range(0, len(point), size)]
        rests = [tuple(name for name in point if name not in part) for part in parts]
        fewer = next((rest for rest in rests if rest and still(rest)), None)
        if fewer is None:
            size //= 2
        else:
            point, size = fewer, min(size, len(fewer) // 2)
    return point

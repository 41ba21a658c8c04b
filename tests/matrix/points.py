"""The engines that are run, each a point: the names of its features."""

from __future__ import annotations

from itertools import combinations

from tests.matrix.covering import covering
from tests.matrix.features import (
    ABORT,
    ASYNC,
    AUTOMATIC,
    CACHES,
    CHUNKED,
    DULLED_BY,
    ENGINE,
    FP8_CACHE,
    GRAPHS,
    INT4_CACHE,
    MODEL_DRAFTS,
    MULTI_STEP,
    ONE_OR_OTHER,
    PREEMPTION,
    PREFIX,
    SLEEP,
    SPECULATION,
    STAGES,
)

Point = tuple[str, ...]
_NAMES = tuple(feature.name for feature in ENGINE)

ALONE: list[Point] = [(name,) for name in _NAMES]
PAIRS: list[Point] = [pair for pair in combinations(_NAMES, 2) if pair not in ONE_OR_OTHER]
MANY: list[Point] = covering(_NAMES, ONE_OR_OTHER, DULLED_BY)  # together they have every one of the pairs


def _beside_adapters() -> list[Point]:
    """As few of the large ones as have every feature, and three."""
    chosen: list[Point] = []
    while len(chosen) < 3 or len(set().union(*chosen)) < len(_NAMES):
        missing = set(_NAMES) - set().union(*chosen)
        rest = [point for point in MANY if point not in chosen]
        chosen.append(max(rest, key=lambda point: (len(missing & {*point}), not CACHES & {*point}, len(point))))
    return chosen


BESIDE_ADAPTERS: list[Point] = _beside_adapters()

# Of a model with an encoder: every feature that it has, in few engines.
BESIDE_ENCODER: list[Point] = [
    tuple(name for name in _NAMES if name in {each.name for each in together})
    for together in (
        (MULTI_STEP, ASYNC, CHUNKED, GRAPHS, ABORT, SPECULATION),
        (ASYNC, PREFIX, STAGES, FP8_CACHE, MODEL_DRAFTS, SLEEP),
        (MULTI_STEP, CHUNKED, GRAPHS, ABORT, MODEL_DRAFTS),
        (AUTOMATIC, PREFIX, PREEMPTION, SPECULATION, INT4_CACHE),
    )
]

# Of a model that sees: every feature, in few engines.
BESIDE_PICTURES: list[Point] = [
    tuple(name for name in _NAMES if name in {each.name for each in together})
    for together in (
        (MULTI_STEP, ASYNC, CHUNKED, GRAPHS, ABORT, SPECULATION),
        (ASYNC, CHUNKED, STAGES, FP8_CACHE, MODEL_DRAFTS, SLEEP),
        (AUTOMATIC, PREFIX, PREEMPTION, SPECULATION, INT4_CACHE),
    )
]

# Of one whose positions have axes: what that may touch.
BESIDE_AXES: list[Point] = [
    tuple(name for name in _NAMES if name in {each.name for each in together})
    for together in ((MULTI_STEP, ASYNC, CHUNKED, PREFIX, GRAPHS, MODEL_DRAFTS),)
]

# Of models with states, without attention and beside it: every feature, in few engines.
BESIDE_STATES: list[Point] = [
    tuple(name for name in _NAMES if name in {each.name for each in together})
    for together in (
        (MULTI_STEP, ASYNC, CHUNKED, GRAPHS, ABORT, SPECULATION),
        (AUTOMATIC, PREFIX, MODEL_DRAFTS, STAGES, SLEEP),
    )
]
BESIDE_BOTH: list[Point] = [
    tuple(name for name in _NAMES if name in {each.name for each in together})
    for together in (
        (ASYNC, CHUNKED, PREFIX, STAGES, FP8_CACHE, GRAPHS, SLEEP),
        (AUTOMATIC, PREFIX, PREEMPTION, SPECULATION, INT4_CACHE),
    )
]

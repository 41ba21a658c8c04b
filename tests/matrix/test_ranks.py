"""Engines whose layers are shared by two ranks: all that the matrix asks of each, and the answers of the plain one.

`make matrix-ranks` runs every engine of the matrix so; two with many features, one beside adapters, run each time, and
one of a model with states.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from cadence import RequestOutput
from tests.matrix.families import STATES_BESIDE
from tests.matrix.features import (
    ASYNC,
    AUTOMATIC,
    CHUNKED,
    GRAPHS,
    MODEL_DRAFTS,
    MULTI_STEP,
    PREEMPTION,
    PREFIX,
    SPECULATION,
    Feature,
)
from tests.matrix.points import ALONE, PAIRS, Point
from tests.matrix.runs import Matrix, MatrixOf

pytestmark = pytest.mark.engine

FAMILY = "llama"
WITH_STATES: Point = tuple(feature.name for feature in (MULTI_STEP, ASYNC, PREFIX, SPECULATION))


def names_of(*features: Feature) -> Point:
    return tuple(feature.name for feature in features)


ALONE_HERE = names_of(MULTI_STEP, ASYNC, CHUNKED, PREEMPTION, GRAPHS, SPECULATION)
BESIDE_ADAPTERS = names_of(AUTOMATIC, ASYNC, GRAPHS, MODEL_DRAFTS)
ENGINES = [(ALONE_HERE, False), (BESIDE_ADAPTERS, True)]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "point" in metafunc.fixturenames:
        every = [(point, adapters) for point in [*ALONE, *PAIRS] for adapters in (False, True)]
        engines = every + ENGINES if metafunc.config.getoption("--every-engine") else ENGINES
        ids = [" x ".join(point) + (", adapters" if adapters else "") for point, adapters in engines]
        metafunc.parametrize(("point", "with_adapters"), engines, ids=ids)


def on_two_ranks(family: str, matrix_of: MatrixOf, tiny_model: Callable[[str], Path]) -> Matrix:
    one = matrix_of(family)
    return Matrix(family, tiny_model(family), one.adapters, one.grammars, {"tensor_parallel_size": 2})


@pytest.fixture(scope="module")
def shared(matrix_of: MatrixOf, tiny_model: Callable[[str], Path]) -> Matrix:
    return on_two_ranks(FAMILY, matrix_of, tiny_model)


def test_every_engine_says_the_same(shared: Matrix, point: Point, with_adapters: bool) -> None:
    faults = shared.faults(shared.run(point, with_adapters), point)
    assert not faults, f"{len(faults)} differ\n" + "\n".join(map(str, faults[:5]))


def test_states_are_shared_by_ranks(matrix_of: MatrixOf, tiny_model: Callable[[str], Path]) -> None:
    shared = on_two_ranks(STATES_BESIDE, matrix_of, tiny_model)
    run = shared.run(WITH_STATES)
    faults = shared.faults(run, WITH_STATES)
    assert not faults, f"{len(faults)} differ\n" + "\n".join(map(str, faults[:5]))
    assert run.stats.states.restored > 10


def tokens(output: RequestOutput) -> list[list[int]]:
    return [list(completion.token_ids) for completion in output.outputs]


@pytest.mark.parametrize("with_adapters", [False, True], ids=["alone", "adapters"])
def test_two_ranks_say_what_one_says(matrix_of: MatrixOf, shared: Matrix, with_adapters: bool) -> None:
    one, two = (matrix.wanted(with_adapters).outputs for matrix in (matrix_of(FAMILY), shared))
    differ = [key for key, output in two.items() if tokens(output) != tokens(one[key])]
    assert not differ and len(two) > 60

"""Engines whose layers are shared by two ranks: all that the matrix asks of each, and the answers of the plain one.

`make matrix-ranks` runs every engine of the matrix so; a few are run each time.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from cadence import RequestOutput
from tests.matrix.features import (
    AUTOMATIC,
    CHUNKED,
    LORA,
    MODEL_DRAFTS,
    PREEMPTION,
    TWO_LORAS,
    engine_points,
)
from tests.matrix.runs import Matrix, MatrixOf

pytestmark = pytest.mark.engine

FAMILY = "llama"
POINTS = [(AUTOMATIC.name, MODEL_DRAFTS.name), (CHUNKED.name, PREEMPTION.name)]
READ = (frozenset[str](), frozenset({LORA.name}), frozenset({TWO_LORAS.name}))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "point" in metafunc.fixturenames:
        points = engine_points() if metafunc.config.getoption("--every-engine") else POINTS
        metafunc.parametrize("point", points, ids=" x ".join)


@pytest.fixture(scope="module")
def shared(matrix_of: MatrixOf, tiny_model: Callable[[str], Path]) -> Matrix:
    return Matrix(FAMILY, tiny_model(FAMILY), matrix_of(FAMILY).adapters, {"tensor_parallel_size": 2})


def test_every_engine_says_the_same(shared: Matrix, point: tuple[str, ...]) -> None:
    faults = [fault for features in READ for fault in shared.faults(point, features)]
    assert not faults, f"{len(faults)} differ\n" + "\n".join(faults[:5])


def tokens(output: RequestOutput) -> list[list[int]]:
    return [list(completion.token_ids) for completion in output.outputs]


@pytest.mark.parametrize("with_adapters", [False, True])
def test_two_ranks_say_what_one_says(matrix_of: MatrixOf, shared: Matrix, with_adapters: bool) -> None:
    one, two = matrix_of(FAMILY).wanted(with_adapters).outputs, shared.wanted(with_adapters).outputs
    differ = [key for key, output in two.items() if tokens(output) != tokens(one[key])]
    assert not differ and len(two) > 60

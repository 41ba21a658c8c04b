"""Every feature with every other one: the tokens, texts, reasons and logprobs of the plain engine.

A cell of two engine features runs an engine with both. A cell of an engine and a request feature looks at the requests
with the one on the engine with the other. A cell of two request features looks at the request with both, on the engine
with each engine feature.
"""

from __future__ import annotations

from itertools import combinations

import pytest

from tests.matrix.features import (
    ADAPTERS,
    CELLS,
    ENGINE,
    FEATURES,
    ONE_OR_OTHER,
    REQUEST,
    Cell,
    engine_points,
    is_engine,
    name_of,
)
from tests.matrix.page import PAGE, render
from tests.matrix.runs import MatrixOf, features_of, search_features

pytestmark = pytest.mark.engine

ALONE = [(feature.name,) for feature in ENGINE]


@pytest.mark.parametrize("cell", CELLS, ids=name_of)
def test_cell(matrix_of: MatrixOf, family: str, cell: Cell) -> None:
    matrix = matrix_of(family)
    faults = [fault for point, features in readings(cell) for fault in matrix.faults(point, features)]
    assert not faults, f"{name_of(cell)}: {len(faults)} differ\n" + "\n".join(faults[:5])


def readings(cell: Cell) -> list[tuple[tuple[str, ...], frozenset[str]]]:
    """(an engine, features of the requests to look at on it), for all that the cell promises."""
    one, other = cell
    if is_engine(one) and is_engine(other):
        return [(cell, frozenset())] if cell not in ONE_OR_OTHER else [((one,), frozenset()), ((other,), frozenset())]
    if is_engine(one):
        return [((one,), frozenset({other}))]
    if cell not in ONE_OR_OTHER:
        return [(point, frozenset(cell)) for point in ALONE]
    return [(point, frozenset({name})) for point in ALONE for name in cell]


def test_every_pair_is_a_cell() -> None:
    names = [feature.name for feature in ENGINE + REQUEST]
    assert len(set(names)) == len(names) == len(FEATURES)
    assert {frozenset(cell) for cell in CELLS} == {frozenset(pair) for pair in combinations(names, 2)}
    assert set(ONE_OR_OTHER) < set(CELLS)
    engines = {cell for cell in CELLS if is_engine(cell[1])}
    assert set(engine_points()) == (engines - set(ONE_OR_OTHER)) | set(ALONE)


@pytest.mark.parametrize("cell", CELLS, ids=name_of)
def test_no_cell_is_empty(matrix_of: MatrixOf, cell: Cell) -> None:
    """There is a request to look at, or a search, on every engine that a cell reads."""
    for point, features in readings(cell):
        session = matrix_of("llama").run(point, bool(features & ADAPTERS)).rounds[0]
        found = [*map(features_of, session.outputs), *map(search_features, session.searches)]
        assert any(features <= each for each in found), name_of(cell)


def test_the_page_is_what_the_matrix_says() -> None:
    assert PAGE.read_text(encoding="utf-8") == render(), "run `python -m tests.matrix.page`"

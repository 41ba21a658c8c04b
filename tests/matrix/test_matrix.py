"""Every feature with every other one: the tokens, texts, reasons and logprobs of the plain engine.

A test runs one engine once, and looks at everything on it. Each engine feature runs alone, and every two together in
one of a few engines with many. All requests with one feature run on every engine, and of those with two a share.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from itertools import combinations

import pytest

from tests.matrix.families import (
    EVERY_FAMILY,
    STATES_ALONE,
    STATES_BESIDE,
    WITH_AXES,
    WITH_ENCODER,
    WITH_PICTURES,
    having,
    lacking,
)
from tests.matrix.features import (
    CELLS,
    ENGINE,
    FEATURES,
    MODEL,
    ONE_OR_OTHER,
    REFUSED,
    REQUEST,
    Cell,
    is_engine,
    is_model,
    name_of,
)
from tests.matrix.narrow import narrowed
from tests.matrix.page import PAGE, render
from tests.matrix.points import (
    ALONE,
    BESIDE_ADAPTERS,
    BESIDE_AXES,
    BESIDE_BOTH,
    BESIDE_ENCODER,
    BESIDE_PICTURES,
    BESIDE_STATES,
    MANY,
    PAIRS,
    Point,
)
from tests.matrix.runs import Fault, Matrix, MatrixOf, Run, chosen, search_features, served
from tests.matrix.seen import features_were_on

pytestmark = pytest.mark.engine

Engine = tuple[str, Point, bool]  # (its model, its features, whether its requests have adapters)
ALWAYS: list[Engine] = [
    *((EVERY_FAMILY[0], point, False) for point in [*ALONE, *MANY]),
    *((EVERY_FAMILY[0], point, True) for point in BESIDE_ADAPTERS),
    *((WITH_ENCODER, point, False) for point in BESIDE_ENCODER),
    *((WITH_ENCODER, point, True) for point in BESIDE_ENCODER[-1:]),
    *((WITH_PICTURES, point, False) for point in BESIDE_PICTURES),
    *((WITH_PICTURES, point, True) for point in BESIDE_PICTURES[-1:]),
    *((WITH_AXES, point, False) for point in BESIDE_AXES),
    *((STATES_ALONE, point, False) for point in BESIDE_STATES),
    *((STATES_BESIDE, point, False) for point in BESIDE_BOTH),
    *((STATES_BESIDE, point, True) for point in BESIDE_BOTH[-1:]),
]
OFTEN_ENOUGH = 3  # engines that look at each pair of request features
FIRST, *OTHERS = EVERY_FAMILY


# Of features alone, what two groups of KV blocks over one pool make different; with experts, all.
OF_OTHERS = dict.fromkeys(OTHERS, ALONE)
TOGETHER = {
    WITH_ENCODER: BESIDE_ENCODER,
    WITH_PICTURES: BESIDE_PICTURES,
    WITH_AXES: BESIDE_AXES,
    STATES_ALONE: BESIDE_STATES,
    STATES_BESIDE: BESIDE_BOTH,
}
OF_OTHERS |= {family: [] for family in TOGETHER}  # all that they have, together with others
ADAPTED = dict.fromkeys(OTHERS, BESIDE_ADAPTERS[-1:]) | {family: points[-1:] for family, points in TOGETHER.items()}
ADAPTED[STATES_ALONE] = ADAPTED[WITH_AXES] = []
OF_OTHERS["gemma2"] = [
    (name,) for name in ("chunked prefill", "prefix caching", "preemption", "speculation", "int4 KV cache")
]


def of_families(points: list[Point], others: dict[str, list[Point]]) -> list[object]:
    """points: on the first family; others: on each other one. Whatever is not among them is wide."""
    every = [
        (family, point)
        for family in EVERY_FAMILY
        for point in dict.fromkeys([*points, *others.get(family, [])])
        if not lacking(family) & {*point}
    ]
    always = {(family, point) for family, some in {FIRST: points, **others}.items() for point in some}
    return [
        pytest.param(*each, id=f"{each[0]}-{' x '.join(each[1])}", marks=() if each in always else pytest.mark.wide)
        for each in every
    ]


@pytest.mark.parametrize(("family", "point"), of_families(ALONE, OF_OTHERS))
def test_one_feature(matrix_of: MatrixOf, family: str, point: Point) -> None:
    check(matrix_of(family), point)


@pytest.mark.parametrize(("family", "point"), of_families(MANY, TOGETHER))
def test_many_features(matrix_of: MatrixOf, family: str, point: Point) -> None:
    check(matrix_of(family), point)


@pytest.mark.parametrize(("family", "point"), of_families(BESIDE_ADAPTERS, ADAPTED))
def test_beside_adapters(matrix_of: MatrixOf, family: str, point: Point) -> None:
    check(matrix_of(family), point, with_adapters=True)


@pytest.mark.wide
@pytest.mark.parametrize(("family", "point"), of_families(PAIRS, {}))
def test_two_features(matrix_of: MatrixOf, family: str, point: Point) -> None:
    check(matrix_of(family), point)


@pytest.mark.wide
@pytest.mark.parametrize("with_adapters", [False, True], ids=["alone", "adapters"])
@pytest.mark.parametrize(("family", "point"), of_families(ALONE, {}))
def test_every_request(matrix_of: MatrixOf, family: str, point: Point, with_adapters: bool) -> None:
    check(matrix_of(family), point, with_adapters, whole=True)


def check(matrix: Matrix, point: Point, with_adapters: bool = False, whole: bool = False) -> None:
    run = matrix.run(point, with_adapters, whole)
    faults = matrix.faults(run, point)
    if faults:
        few = narrowed(point, partial(_differs, matrix, run)) if len(point) > 1 else point
        pytest.fail(f"{matrix.family}, engine with {' x '.join(point)}: {told(faults, few)}", pytrace=False)
    features_were_on(run, point)


def _differs(matrix: Matrix, run: Run, few: Point) -> bool:
    """Whether an engine with fewer features does, too, given what `run` was given."""
    return bool(matrix.faults(matrix.run_rounds(few, run.batches, run.with_adapters), few))


def told(faults: list[Fault], few: Point) -> str:
    """few: the engine features with which it still differs"""
    cells = Counter(cell for fault in faults for cell in CELLS if {*cell} <= {*few} | fault.features)
    named = [f"{name_of(cell)}: {count}" for cell, count in cells.most_common(12)]
    lines = [f"{fault.where}: {fault.text}" for fault in faults[:5]]
    return "\n".join([f"{len(faults)} differ; differs with {' x '.join(few)}", *named, *lines])


def test_every_pair_is_a_cell() -> None:
    names = [feature.name for feature in MODEL + ENGINE + REQUEST]
    assert len(set(names)) == len(names) == len(FEATURES)
    assert {frozenset(cell) for cell in CELLS} == {frozenset(pair) for pair in combinations(names, 2)}
    assert set(ONE_OR_OTHER) < set(CELLS)
    engines = {cell for cell in CELLS if is_engine(cell[0]) and is_engine(cell[1])}
    assert {*PAIRS} == engines - set(ONE_OR_OTHER)


def test_every_cell_is_read() -> None:
    """By engines that run each time: each checks all its requests and searches (`check`, `features_were_on`)."""
    read = Counter(cell for engine in ALWAYS for cell in cells_of(*engine))
    assert {cell for cell in CELLS if not read[cell]} == {*REFUSED}
    of_requests = [cell for cell in CELLS if not is_engine(cell[0]) and not is_model(cell[0])]
    assert [name_of(cell) for cell in of_requests if read[cell] < OFTEN_ENOUGH] == []


def cells_of(family: str, point: Point, with_adapters: bool) -> set[Cell]:
    """Those with something to look at on an engine. Of one or the other: engines with one, requests in one batch."""
    found: set[Cell] = {cell for cell in CELLS if {*cell} <= {*point}}
    found |= {cell for cell in ONE_OR_OTHER if is_engine(cell[1]) and {*cell} & {*point}}
    for batch in [served(batch, family) for batch in chosen(point, with_adapters)[0]]:
        here = [*(request.features for request in batch.requests.values()), *map(search_features, batch.searches)]
        alone = set().union(*here)
        found |= {cell for cell in CELLS if any({*cell} <= features for features in here)}
        found |= {cell for cell in ONE_OR_OTHER if {*cell} <= alone}
        found |= {cell for cell in CELLS if cell[0] in point and cell[1] in alone}
        found |= {cell for cell in CELLS if cell[0] in having(family) and cell[1] in {*point, *alone}}
    return found


def test_the_page_is_what_the_matrix_says() -> None:
    assert PAGE.read_text(encoding="utf-8") == render(), "run `python -m tests.matrix.page`"

"""Features that no engine alone shows: what they change is seen beside requests and engines without them."""

from __future__ import annotations

from itertools import combinations

import pytest

from tests.matrix.compare import difference, search_difference
from tests.matrix.families import FAMILIES
from tests.matrix.features import ADAPTERS, BEAM, CACHES, ONE_TOKEN, PREEMPTION
from tests.matrix.points import PAIRS
from tests.matrix.runs import MatrixOf, features_of
from tests.matrix.seen import NAMES, preempted
from tests.matrix.work import Batch, Request, Search, adapter_batches, batches, twin

pytestmark = pytest.mark.engine


def alone() -> dict[str, Request]:
    """The requests with one feature."""
    return {key: request for batch in batches() for key, request in batch.requests.items() if key in NAMES}


def searches(which: list[Batch]) -> dict[str, Search]:
    return {name: search for batch in which for name, search in batch.searches.items()}


@pytest.mark.parametrize("family", FAMILIES)  # what the one with experts says has no stop string in it
def test_request_features_show(matrix_of: MatrixOf, family: str) -> None:
    """A request with the feature does not get what its twin without it gets."""
    matrix = matrix_of(family)
    session = matrix.plain([Batch({key: twin(request) for key, request in alone().items()}, {})])
    wanted = matrix.wanted()
    silent = [key for key, output in session.outputs.items() if not difference(wanted.outputs[key], output)]
    assert not silent and len(session.outputs) == len(NAMES)
    assert searches(batches()).keys() == {BEAM.name}


@pytest.mark.parametrize("name", sorted(CACHES))
def test_caches_show(matrix_of: MatrixOf, family: str, name: str) -> None:
    """Their numbers are others than those of the model's type, for most requests."""
    matrix = matrix_of(family)
    told = {
        key: request
        for batch in batches()
        for key, request in batch.requests.items()
        if getattr(request.params, "logprobs", None) is not None
    }
    plain, found = matrix.plain([Batch(told, {})]).outputs, matrix.wanted(caches=(name,)).outputs
    differ = [key for key, output in plain.items() if output.outputs[0].logprobs != found[key].outputs[0].logprobs]
    assert len(differ) > len(told) // 2 > 5


def test_adapters_show(matrix_of: MatrixOf, family: str) -> None:
    """Each changes what is said and found; who has none gets what an engine that knows of none gives."""
    matrix = matrix_of(family)
    adapted = matrix.wanted(with_adapters=True)
    plain = matrix.plain([Batch(alone(), {}, searches(batches()))])
    requests = {key: request for batch in adapter_batches() for key, request in batch.requests.items()}
    session = matrix.plain([Batch({key: twin(requests[key]) for key in ADAPTERS}, {})], with_adapters=True)
    assert [key for key in ADAPTERS if not difference(adapted.outputs[key], session.outputs[key])] == []
    found = [*adapted.searches.values(), plain.searches[BEAM.name]]
    assert all(search_difference(one, other) for one, other in combinations(found, 2)) and len(found) == 3
    without = {key.removesuffix(" beside adapters"): key for key in requests if not features_of(key) & ADAPTERS}
    assert without.keys() == NAMES
    assert [key for key, here in without.items() if difference(adapted.outputs[here], plain.outputs[key])] == []


@pytest.mark.wide
@pytest.mark.parametrize("family", FAMILIES)
def test_most_requests_are_preempted_somewhere(matrix_of: MatrixOf, family: str) -> None:
    matrix, seen, growing = matrix_of(family), set[str](), set[str]()
    for point in [point for point in PAIRS if PREEMPTION.name in point and not CACHES & {*point}]:
        for session in matrix.run(point, whole=True).rounds:
            seen |= preempted(session)
            growing |= {key for key, output in session.outputs.items() if len(output.outputs[0].token_ids) > 6}
    assert len(seen & growing) > len(growing) // 2
    features = set().union(*map(features_of, seen))
    assert features >= NAMES - {ONE_TOKEN.name}, "a single token needs no more blocks, all others do"

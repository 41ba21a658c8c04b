"""A matrix of features that are silently off would prove nothing: what they do is seen."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations

import pytest

from cadence.core.adapter import NO_SLOT
from tests.helpers.wide import mostly_wide
from tests.matrix.compare import difference, search_difference
from tests.matrix.engine import Session
from tests.matrix.families import FAMILIES
from tests.matrix.features import (
    ABORT,
    ADAPTERS,
    ASYNC,
    AUTOMATIC,
    BEAM,
    CACHES,
    CHUNK,
    CHUNKED,
    FP8_CACHE,
    GRAMMARS,
    GRAPHS,
    INT4_CACHE,
    MODEL_DRAFTS,
    MULTI_STEP,
    ON_HOST,
    ONE_TOKEN,
    PREEMPTION,
    PREFIX,
    REQUEST,
    SPECULATION,
    STAGES,
    engine_points,
)
from tests.matrix.runs import MatrixOf, Run, features_of
from tests.matrix.work import Batch, adapter_batches, batches, prompts, twin

pytestmark = pytest.mark.engine

Point = tuple[str, ...]
POINTS = engine_points()
NAMES = {feature.name for feature in REQUEST} - {BEAM.name} - ADAPTERS
LONGEST = {MULTI_STEP.name: 4, AUTOMATIC.name: 16}  # forwards of a burst


@pytest.mark.parametrize("point", POINTS, ids=" x ".join)
def test_engine_features(matrix_of: MatrixOf, family: str, point: Point) -> None:
    features_were_on(matrix_of(family).run(point), point)


@pytest.mark.parametrize("point", [point for point in POINTS if len(point) == 1], ids=" x ".join)
def test_engine_features_beside_adapters(matrix_of: MatrixOf, family: str, point: Point) -> None:
    run = matrix_of(family).run(point, with_adapters=True)
    features_were_on(run, point)
    assert frozenset({NO_SLOT, 0, 1}) in run.trace.slots, "rows of both adapters and of none were in one plan"


def features_were_on(run: Run, point: Point) -> None:
    for name in point:
        SEEN[name](run, point)
    assert run.stats.kv_usage == 0, "blocks did not come back"


def bursts_were_long(run: Run, point: Point) -> None:
    if {STAGES.name, AUTOMATIC.name} <= set(point):
        return  # rows take turns instead
    (longest,) = (LONGEST[name] for name in point if name in LONGEST)
    if PREEMPTION.name in point:  # bursts shrink, and automatic ones wait until nobody does
        assert run.trace.longest_burst > 1
        return
    assert run.trace.longest_burst == longest
    if CHUNKED.name in point:
        return  # some have got all they want before automatic bursts begin
    first_two = [*batches()[:2], *adapter_batches()[:2]]  # the third has host processors
    early = {request_id for batch in first_two for request_id in batch.requests}
    for session in run.rounds:
        long = {key for key, output in session.outputs.items() if len(output.outputs[0].token_ids) > 2}
        free = {key for key in long & early if not features_of(key) & GRAMMARS}  # those wait after a burst's first
        missed = sorted(key for key in free if not run.trace.bursts[key])
        # Automatic ones wait until all grammars are compiled: on a busy machine some have ended by then.
        assert len(missed) <= (len(free) // 4 if AUTOMATIC.name in point else 0), f"{missed} were in no burst"


def plans_overlapped(run: Run, point: Point) -> None:
    assert run.trace.overlaps > 10


def rows_took_turns(run: Run, point: Point) -> None:
    """Both stages had work at the same time."""
    assert run.trace.apart > 10 or PREEMPTION.name in point


def prompts_came_in_chunks(run: Run, point: Point) -> None:
    assert all(len(prompt) > CHUNK for prompt in prompts())
    for request_id in run.rounds[0].outputs:
        assert run.trace.chunks[request_id] > 0 or PREFIX.name in point, f"{request_id} was computed whole"


def prefixes_were_found(run: Run, point: Point) -> None:
    assert run.stats.prefix_hits > 0
    if PREEMPTION.name not in point:
        warm = run.rounds[1].outputs
        found = [request_id for request_id, output in warm.items() if output.num_cached_tokens]
        assert len(found) > len(warm) * 2 // 3


def requests_were_preempted(run: Run, point: Point) -> None:
    if MODEL_DRAFTS.name not in point:  # blocks reserved for drafts keep others out: tests/e2e/test_model_drafts.py
        assert run.stats.num_preemptions > 5


def preempted(session: Session) -> set[str]:
    outputs = session.outputs.items()
    return {request_id for request_id, output in outputs if output.metrics and output.metrics.num_preemptions}


def graphs_were_replayed(run: Run, point: Point) -> None:
    assert 0 < run.trace.captures < run.trace.replays
    for name in point:
        assert run.trace.largest_part == LONGEST.get(name, run.trace.largest_part), "no burst was captured whole"


def victims_were_aborted(run: Run, point: Point) -> None:
    victims = {request_id for batch in batches() for request_id in batch.victims}
    in_bursts = any(name in LONGEST for name in point)
    for session in run.rounds:
        assert session.aborted == dict.fromkeys(victims, in_bursts)
        assert session.others_left > 0


def drafts_were_verified(run: Run, point: Point) -> None:
    drafts = run.stats.drafts
    assert drafts.num_forwards > 20 and 0 < drafts.num_accepted < drafts.num_drafted
    if len(point) == 1 and not run.with_adapters:  # of all requests, not of some
        assert len(drafts.accepted_by_position) == 3 and drafts.accepted_by_position[-1] > 0, "no run was kept whole"


def cache_has_its_type(run: Run, point: Point) -> None:
    (wanted,) = (kind for name, kind in CACHE_TYPES.items() if name in point)
    assert run.trace.cache_dtype == wanted


CACHE_TYPES = {FP8_CACHE.name: "fp8_e4m3", INT4_CACHE.name: "int4"}
SEEN: dict[str, Callable[[Run, Point], None]] = {
    MULTI_STEP.name: bursts_were_long,
    AUTOMATIC.name: bursts_were_long,
    ASYNC.name: plans_overlapped,
    CHUNKED.name: prompts_came_in_chunks,
    PREFIX.name: prefixes_were_found,
    PREEMPTION.name: requests_were_preempted,
    GRAPHS.name: graphs_were_replayed,
    ABORT.name: victims_were_aborted,
    SPECULATION.name: drafts_were_verified,
    MODEL_DRAFTS.name: drafts_were_verified,
    STAGES.name: rows_took_turns,
    **dict.fromkeys(CACHES, cache_has_its_type),
}


@pytest.mark.parametrize("family", mostly_wide(FAMILIES, FAMILIES[:1]))  # reads every engine with preemption
def test_most_requests_were_preempted_somewhere(matrix_of: MatrixOf, family: str) -> None:
    matrix = matrix_of(family)
    growing = {key for key, output in matrix.wanted().outputs.items() if len(output.outputs[0].token_ids) > 6}
    points = [point for point in POINTS if PREEMPTION.name in point and not CACHES & {*point}]
    seen = set().union(*(preempted(session) for point in points for session in matrix.run(point).rounds))
    assert len(seen & growing) > len(growing) // 2
    features = set().union(*map(features_of, seen))
    assert features >= NAMES - {ONE_TOKEN.name}, "a single token needs no more blocks, all others do"


@pytest.mark.parametrize("family", FAMILIES)  # what the one with experts says has no stop string in it
def test_request_features_show(matrix_of: MatrixOf, family: str) -> None:
    """A request with the feature does not get what its twin without it gets."""
    matrix = matrix_of(family)
    alone = {key: request for batch in batches() for key, request in batch.requests.items() if key in NAMES}
    session = matrix.plain(Batch({key: twin(request) for key, request in alone.items()}, {}))
    silent = [key for key, output in session.outputs.items() if not difference(matrix.wanted().outputs[key], output)]
    assert not silent and len(session.outputs) == len(NAMES)
    assert matrix.wanted().searches.keys() == {BEAM.name}


@pytest.mark.parametrize("name", sorted(CACHES))
def test_caches_show(matrix_of: MatrixOf, family: str, name: str) -> None:
    """Their numbers are others than those of the model's type, for most requests."""
    matrix = matrix_of(family)
    plain, found = matrix.wanted().outputs, matrix.wanted(caches=(name,)).outputs
    differ = [key for key, output in found.items() if output.outputs[0].logprobs != plain[key].outputs[0].logprobs]
    told = [key for key, output in found.items() if output.outputs[0].logprobs]
    assert len(differ) > len(told) // 2 > 5


def test_adapters_show(matrix_of: MatrixOf, family: str) -> None:
    """Each changes what is said and found; who has none gets what an engine that knows of none gives."""
    matrix = matrix_of(family)
    adapted, plain = matrix.wanted(with_adapters=True), matrix.wanted()
    requests = {key: request for batch in adapter_batches() for key, request in batch.requests.items()}
    session = matrix.plain(Batch({key: twin(requests[key]) for key in ADAPTERS}, {}), with_adapters=True)
    assert [key for key in ADAPTERS if not difference(adapted.outputs[key], session.outputs[key])] == []
    searches = [*adapted.searches.values(), *plain.searches.values()]
    assert all(search_difference(one, other) for one, other in combinations(searches, 2)) and len(searches) == 3
    without = {key.removesuffix(" beside adapters"): key for key in requests if not features_of(key) & ADAPTERS}
    assert without.keys() == NAMES
    assert [key for key, here in without.items() if difference(adapted.outputs[here], plain.outputs[key])] == []


def test_a_host_processor_makes_bursts_one(matrix_of: MatrixOf, family: str) -> None:
    run = matrix_of(family).run((MULTI_STEP.name,))
    on_host = [key for key in run.rounds[0].outputs if ON_HOST.name in features_of(key)]
    assert on_host and not any(run.trace.bursts[key] for key in on_host)


def test_grammars_name_the_tokens(matrix_of: MatrixOf, family: str) -> None:
    """Those of rows with one, each of them, and of no others."""
    run = matrix_of(family).run((MULTI_STEP.name,))
    for request_id, output in run.rounds[0].outputs.items():
        count = len(output.outputs[0].token_ids)
        if features_of(request_id) & GRAMMARS:
            assert run.trace.masks[request_id] >= count, f"{request_id} was free"
        else:
            assert not run.trace.masks[request_id], f"{request_id} was held to a grammar"

"""A matrix of features that are silently off would prove nothing: what they do is seen.

Beside a feature that dulls another one (`DULLED_BY`), less is asked of the other.
"""

from __future__ import annotations

from collections.abc import Callable

from cadence.core.adapter import NO_SLOT
from tests.matrix.engine import Session
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
    PREEMPTION,
    PREFIX,
    REQUEST,
    SLEEP,
    SPECULATION,
    STAGES,
    dulled,
)
from tests.matrix.points import Point
from tests.matrix.runs import Run, features_of
from tests.matrix.work import adapter_batches, batches, prompts

NAMES = {feature.name for feature in REQUEST} - {BEAM.name} - ADAPTERS
LONGEST = {MULTI_STEP.name: 4, AUTOMATIC.name: 16}  # forwards of a burst
CACHE_TYPES = {FP8_CACHE.name: "fp8_e4m3", INT4_CACHE.name: "int4"}


def features_were_on(run: Run, point: Point) -> None:
    for name in point:
        SEEN[name](run, point)
    for session, asked in zip(run.rounds, run.batches, strict=True):
        wanted = {request_id for batch in asked for request_id in [*batch.requests, *batch.victims]}
        assert session.outputs.keys() == wanted, "every request came to its end"
        assert session.searches.keys() == {name for batch in asked for name in batch.searches}
    if run.with_adapters:
        assert frozenset({NO_SLOT, 0, 1}) in run.trace.slots, "rows of both adapters and of none were in one plan"
    assert run.stats.kv_usage == 0, "blocks did not come back"


def bursts_were_long(run: Run, point: Point) -> None:
    (name,) = LONGEST.keys() & {*point}
    if name == AUTOMATIC.name and STAGES.name in point:
        return  # rows take turns instead
    if PREEMPTION.name in point:
        assert run.trace.longest_burst > 1
        return
    assert run.trace.longest_burst == LONGEST[name]
    if dulled(name, point):
        return
    first_two = [*batches()[:2], *adapter_batches()[:2]]  # the third has host processors
    early = {request_id for batch in first_two for request_id in batch.requests}
    for session in run.rounds:
        long = {key for key, output in session.outputs.items() if len(output.outputs[0].token_ids) > 2}
        if name == AUTOMATIC.name:  # not while another one's prompt is computed
            long &= {key for key, plans in run.trace.decoded.items() if plans > 2}
        free = {key for key in long & early if not features_of(key) & GRAMMARS}  # those wait after a burst's first
        missed = sorted(key for key in free if not run.trace.bursts[key])
        assert not missed, f"{missed} were in no burst"


def explicit_bursts_were_long(run: Run, point: Point) -> None:
    bursts_were_long(run, point)
    if len(point) == 1:
        a_host_processor_made_bursts_one(run)
        grammars_named_the_tokens(run)


def a_host_processor_made_bursts_one(run: Run) -> None:
    on_host = [key for key in run.rounds[0].outputs if ON_HOST.name in features_of(key)]
    assert on_host and not any(run.trace.bursts[key] for key in on_host)


def grammars_named_the_tokens(run: Run) -> None:
    """Those of rows with one, each of them, and of no others."""
    for request_id, output in run.rounds[0].outputs.items():
        count = len(output.outputs[0].token_ids)
        if features_of(request_id) & GRAMMARS:
            assert run.trace.masks[request_id] >= count, f"{request_id} was free"
        else:
            assert not run.trace.masks[request_id], f"{request_id} was held to a grammar"


def plans_overlapped(run: Run, point: Point) -> None:
    assert run.trace.overlaps > 10


def rows_took_turns(run: Run, point: Point) -> None:
    """Both stages had work at the same time."""
    assert run.trace.apart > 10 or dulled(STAGES.name, point)


def prompts_came_in_chunks(run: Run, point: Point) -> None:
    assert all(len(prompt) > CHUNK for prompt in prompts())
    whole = [request_id for request_id in run.rounds[0].outputs if not run.trace.chunks[request_id]]
    assert len(whole) < len(run.rounds[0].outputs) if dulled(CHUNKED.name, point) else not whole


def prefixes_were_found(run: Run, point: Point) -> None:
    assert run.stats.prefix_hits > 0
    if not dulled(PREFIX.name, point):
        warm = run.rounds[1].outputs
        found = [request_id for request_id, output in warm.items() if output.num_cached_tokens]
        assert len(found) > len(warm) * 2 // 3


def requests_were_preempted(run: Run, point: Point) -> None:
    if dulled(PREEMPTION.name, point):
        return  # tests/e2e/test_model_drafts.py
    assert run.stats.num_preemptions > 5
    if len(point) == 1 and not run.with_adapters:
        features = set().union(*(features_of(key) for session in run.rounds for key in preempted(session)))
        assert len(NAMES - features) <= len(NAMES) // 3  # all of them with `--wide`: test_truly_on.py


def preempted(session: Session) -> set[str]:
    outputs = session.outputs.items()
    return {request_id for request_id, output in outputs if output.metrics and output.metrics.num_preemptions}


def graphs_were_replayed(run: Run, point: Point) -> None:
    assert 0 < run.trace.captures < run.trace.replays
    if STAGES.name in point and {MODEL_DRAFTS.name, SPECULATION.name} & {*point}:
        return  # rows take turns, and drafts end some of the few in each plan early: seldom is a burst captured whole
    for name in LONGEST.keys() & {*point}:
        assert run.trace.largest_part == LONGEST[name] or dulled(name, point), "no burst was captured whole"


def victims_were_aborted(run: Run, point: Point) -> None:
    victims = {request_id for batch in run.batches[0] for request_id in batch.victims}
    in_bursts = {*victims} if any(name in LONGEST for name in point) else set()
    in_bursts -= {*run.batches[0][-1].victims}  # beside host processors bursts are one forward long
    for session in run.rounds:
        assert session.others_left > 0
        if len(point) <= 2:
            assert session.aborted == {victim: victim in in_bursts for victim in victims}
        else:  # a captured burst may bring all that a victim wants at once
            assert session.aborted and {*session.aborted} <= victims


def drafts_were_verified(run: Run, point: Point) -> None:
    drafts = run.stats.drafts
    assert drafts.num_forwards > 20 and 0 < drafts.num_accepted < drafts.num_drafted, drafts
    if len(point) == 1 and not run.with_adapters:  # of all requests, not of some
        assert len(drafts.accepted_by_position) == 3 and drafts.accepted_by_position[1] > 0, (
            "no two drafts of a run were kept"
        )


def memory_went_and_came(run: Run, point: Point) -> None:
    """Of what was dropped, all is there again: the tokens say so."""
    calls = run.trace.calls
    assert calls["give_back_memory"] >= 2 * len(run.rounds)
    assert calls["take_back_memory"] == 2 * calls["give_back_memory"]
    assert run.stats.num_preemptions > 0, "what ran was computed again"


def cache_has_its_type(run: Run, point: Point) -> None:
    (wanted,) = (kind for name, kind in CACHE_TYPES.items() if name in point)
    assert run.trace.cache_dtype == wanted


SEEN: dict[str, Callable[[Run, Point], None]] = {
    MULTI_STEP.name: explicit_bursts_were_long,
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
    SLEEP.name: memory_went_and_came,
    **dict.fromkeys(CACHES, cache_has_its_type),
}

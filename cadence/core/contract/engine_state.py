"""The engine as seen from outside: which requests run, which wait, and which hold which block."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest

from cadence.core.adapter import NO_ADAPTER_STATS, AdapterStats
from cadence.core.draft_stats import NO_DRAFTS, DraftStats
from cadence.core.inputs.media import NO_MEDIA_STATS, MediaStats
from cadence.core.model.state_spec import NO_STATE_STATS, StateStats

FREE = 0  # owner of a block that no request holds and that caches nothing
CACHED = 1  # owner of a block that no request holds but that a later one may reuse
FORWARD_TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)  # upper bounds; the last is open
MOST_STEP_TIMES = 64
FIRST_OWNER = 2  # owner FIRST_OWNER + i: held by running[i] (the first of them, where several share it)


@dataclass(frozen=True, slots=True)
class RequestView:
    request_id: str
    prompt_tokens: int
    output_tokens: int
    computed_tokens: int
    num_preemptions: int


@dataclass(frozen=True, slots=True)
class EngineStats:
    """Numbers for metrics. Those since the start are totals; the front turns differences into rates."""

    num_running: int = 0
    num_waiting: int = 0
    kv_usage: float = 0.0  # share of the KV blocks that requests hold, 0 to 1
    prefix_queries: int = 0  # prompt tokens looked up in the prefix cache since the start
    prefix_hits: int = 0  # of these, tokens found
    num_preemptions: int = 0  # since the start
    forward_counts: tuple[int, ...] = ()  # forwards by their tokens, in buckets of FORWARD_TOKENS
    forward_tokens: int = 0  # of all forwards together
    drafts: DraftStats = NO_DRAFTS  # since the start
    adapters: AdapterStats = NO_ADAPTER_STATS
    media: MediaStats = NO_MEDIA_STATS  # since the start
    states: StateStats = NO_STATE_STATS  # since the start
    busy_seconds: tuple[float, ...] = ()  # since the start, of each rank that is a process of its own


@dataclass(frozen=True, slots=True)
class EngineState:
    running: list[RequestView] = field(default_factory=list)
    waiting: list[RequestView] = field(default_factory=list)
    block_owners: list[int] = field(default_factory=list)  # by block id, see FREE, CACHED, FIRST_OWNER
    block_size: int = 0  # tokens
    stats: EngineStats = field(default_factory=EngineStats)
    num_steps: int = 0
    step_seconds: list[float] = field(default_factory=list)  # of the last steps, oldest first, at most MOST_STEP_TIMES


def joined(states: Sequence[EngineState]) -> EngineState:
    """Several engines seen as one: their requests and blocks side by side, their totals summed up."""
    if len(states) == 1:
        return states[0]
    running = [view for state in states for view in state.running]
    owners: list[int] = []
    first = 0  # place in `running` of the engine's own
    for state in states:
        owners += [owner + first if owner >= FIRST_OWNER else owner for owner in state.block_owners]
        first += len(state.running)
    return EngineState(
        running=running,
        waiting=[view for state in states for view in state.waiting],
        block_owners=owners,
        block_size=max(state.block_size for state in states),
        stats=_summed([state.stats for state in states]),
        num_steps=sum(state.num_steps for state in states),
        step_seconds=[seconds for state in states for seconds in state.step_seconds][-MOST_STEP_TIMES:],
    )


def _summed(stats: Sequence[EngineStats]) -> EngineStats:
    return EngineStats(
        num_running=sum(one.num_running for one in stats),
        num_waiting=sum(one.num_waiting for one in stats),
        kv_usage=sum(one.kv_usage for one in stats) / len(stats),  # caches of equal size
        prefix_queries=sum(one.prefix_queries for one in stats),
        prefix_hits=sum(one.prefix_hits for one in stats),
        num_preemptions=sum(one.num_preemptions for one in stats),
        forward_counts=tuple(map(sum, zip_longest(*(one.forward_counts for one in stats), fillvalue=0))),
        forward_tokens=sum(one.forward_tokens for one in stats),
        drafts=functools.reduce(DraftStats.plus, (one.drafts for one in stats)),
        adapters=AdapterStats(
            _names(one.adapters.running for one in stats),
            _names(one.adapters.waiting for one in stats),
            max(one.adapters.time for one in stats),
        ),
        media=functools.reduce(MediaStats.plus, (one.media for one in stats)),
        states=functools.reduce(StateStats.plus, (one.states for one in stats)),
        busy_seconds=tuple(seconds for one in stats for seconds in one.busy_seconds),
    )


def _names(many: Iterable[tuple[str, ...]]) -> tuple[str, ...]:
    return tuple(sorted({name for names in many for name in names}))

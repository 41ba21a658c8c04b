"""A look at the engine from outside: who runs, who waits, who holds which block."""

from __future__ import annotations

from dataclasses import dataclass, field

from cadence.core.adapter import NO_ADAPTER_STATS, AdapterStats
from cadence.core.draft_stats import NO_DRAFTS, DraftStats

FREE = 0  # owner of a block that no request holds and that caches nothing
CACHED = 1  # owner of a block that no request holds but that a later one may reuse
FORWARD_TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)  # upper bounds; the last is open
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
    busy_seconds: tuple[float, ...] = ()  # since the start, of each rank that is a process of its own


@dataclass(frozen=True, slots=True)
class EngineState:
    running: list[RequestView] = field(default_factory=list)
    waiting: list[RequestView] = field(default_factory=list)
    block_owners: list[int] = field(default_factory=list)  # by block id, see FREE, CACHED, FIRST_OWNER
    block_size: int = 0  # tokens
    stats: EngineStats = field(default_factory=EngineStats)
    num_steps: int = 0
    step_seconds: list[float] = field(default_factory=list)  # the last steps' durations, oldest first, at most 64

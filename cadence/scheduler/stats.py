"""Numbers about the scheduler, for metrics."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SchedulerStats:
    num_running: int
    num_waiting: int
    kv_usage: float  # share of the KV blocks that requests hold, 0 to 1
    prefix_queries: int  # prompt tokens looked up in the prefix cache since the start
    prefix_hits: int  # of these, tokens found
    num_preemptions: int  # since the start
    num_burst_forwards: int = 0  # forwards beyond the first of their plan, since the start
    forward_counts: tuple[int, ...] = ()  # forwards by their tokens, in buckets (`core.engine_state.FORWARD_TOKENS`)
    forward_tokens: int = 0  # of all forwards together

"""An engine's state as the page reads it: plain JSON, small however many blocks there are."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from cadence.core.contract.engine_state import CACHED, FIRST_OWNER, FREE, EngineState, RequestView
from cadence.engine.metrics.metric import Counter, Histogram, Metric

MAX_REQUESTS_SHOWN = 256  # of the running and of the waiting each; the counts are exact


def describe(state: EngineState, metrics: Sequence[Metric], model: str) -> dict[str, Any]:
    return {
        "model": model,
        "time": time.monotonic(),  # seconds on the server's clock; only differences mean anything
        "running": _requests(state.running),
        "waiting": _requests(state.waiting),
        "num_running": len(state.running),
        "num_waiting": len(state.waiting),
        "kv_usage": state.stats.kv_usage,
        "blocks": _blocks(state),
        "prefix": {"queries": state.stats.prefix_queries, "hits": state.stats.prefix_hits},
        "states": dataclasses.asdict(state.stats.states) if state.stats.states.rows else None,
        "preemptions": state.stats.num_preemptions,
        "drafts": {
            "forwards": state.stats.drafts.num_forwards,
            "drafted": list(state.stats.drafts.drafted_by_position),
            "accepted": list(state.stats.drafts.accepted_by_position),
        },
        "steps": {"count": state.num_steps, "seconds": list(state.step_seconds)},
        "generated_tokens": _total(metrics, "vllm:generation_tokens"),
        "first_token": _first_token(metrics),
    }


def describe_engine(state: EngineState) -> dict[str, Any]:
    """A line of one of several engines."""
    stats = state.stats
    return {
        "num_running": len(state.running),
        "num_waiting": len(state.waiting),
        "kv_usage": stats.kv_usage,
        "prefix": {"queries": stats.prefix_queries, "hits": stats.prefix_hits},
    }


def seen_by(state: EngineState, owns: Callable[[str], bool]) -> EngineState:
    """The state as one of several tenants may see it: own requests as they are, those of all others as one."""
    running = _others_summed(state.running, owns, "running")
    waiting = _others_summed(state.waiting, owns, "waiting")
    place = {view.request_id: number for number, view in enumerate(running)}
    moved = {
        FIRST_OWNER + number: FIRST_OWNER + place.get(view.request_id, len(running) - 1)
        for number, view in enumerate(state.running)
    }
    owners = [moved.get(owner, owner) for owner in state.block_owners]
    return dataclasses.replace(state, running=running, waiting=waiting, block_owners=owners)


def _others_summed(views: Sequence[RequestView], owns: Callable[[str], bool], mood: str) -> list[RequestView]:
    own = [view for view in views if owns(view.request_id)]
    others = [view for view in views if not owns(view.request_id)]
    if not others:
        return own
    together = RequestView(
        request_id=f"{mood} requests of other keys",
        prompt_tokens=sum(view.prompt_tokens for view in others),
        output_tokens=sum(view.output_tokens for view in others),
        computed_tokens=sum(view.computed_tokens for view in others),
        num_preemptions=sum(view.num_preemptions for view in others),
    )
    return [*own, together]


def _requests(views: Sequence[RequestView]) -> list[dict[str, Any]]:
    return [dataclasses.asdict(view) for view in views[:MAX_REQUESTS_SHOWN]]


def _blocks(state: EngineState) -> dict[str, Any]:
    """Owners by block id as runs: owner, length, owner, length, … (0 free, 1 cached, 2 + i held by running[i])."""
    owners_np = np.asarray(state.block_owners, dtype=np.int64)
    starts_np = np.flatnonzero(np.diff(owners_np, prepend=-1))
    lengths_np = np.diff(starts_np, append=len(owners_np))
    free, cached = int((owners_np == FREE).sum()), int((owners_np == CACHED).sum())
    return {
        "count": len(owners_np),
        "size": state.block_size,
        "free": free,
        "cached": cached,
        "held": len(owners_np) - free - cached,
        "runs": np.column_stack([owners_np[starts_np], lengths_np]).ravel().tolist(),
    }


def _total(metrics: Sequence[Metric], name: str) -> int:
    return sum(metric.value for metric in metrics if isinstance(metric, Counter) and metric.name == name)


def _first_token(metrics: Sequence[Metric]) -> dict[str, Any]:
    """Time to first token since the start; the page turns differences into a mean per interval."""
    name = "vllm:time_to_first_token_seconds"
    found = [metric for metric in metrics if isinstance(metric, Histogram) and metric.name == name]
    return {"count": sum(metric.count for metric in found), "sum": sum(metric.sum for metric in found)}

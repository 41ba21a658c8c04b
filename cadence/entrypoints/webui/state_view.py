"""An engine's state as the page reads it: plain JSON, small however many blocks there are."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from cadence.core.engine_state import CACHED, FREE, EngineState, RequestView
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
        "kv_usage": state.kv_usage,
        "blocks": _blocks(state),
        "prefix": {"queries": state.prefix_queries, "hits": state.prefix_hits},
        "preemptions": state.num_preemptions,
        "steps": {"count": state.num_steps, "seconds": list(state.step_seconds)},
        "generated_tokens": _total(metrics, "vllm:generation_tokens"),
        "first_token": _first_token(metrics),
    }


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

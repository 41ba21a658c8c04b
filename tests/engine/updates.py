"""Requests and updates made by hand, as the engine core would send them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from cadence.core.contract.request import EngineRequest, FinishReason, StopRule
from cadence.core.contract.step import TokenLogprobs
from cadence.core.contract.update import RequestUpdate
from cadence.core.draft_stats import Run
from cadence.core.failure import Failure
from cadence.core.sampling_params import SamplingParams

PROMPT = [5, 6, 7]


def make_request(request_id: str = "r", **params: Any) -> EngineRequest:
    rule = StopRule(frozenset(), frozenset(), min_tokens=0, max_tokens=1000)
    return EngineRequest(request_id, PROMPT, SamplingParams(**params), rule, seed=0, arrival_time=0.0)


def make_update(
    token_ids: Sequence[int],
    end: FinishReason | None = None,
    reason: int | Failure | None = None,
    *,
    request_id: str = "r",
    logprobs: Sequence[TokenLogprobs] = (),
    runs: Sequence[Run] = (),
) -> RequestUpdate:
    return RequestUpdate(request_id, list(token_ids), logprobs, (), end, reason, 0, 0, 1.0, runs)


def token_logprobs(token_id: int, logprob: float, other: int) -> TokenLogprobs:
    """Of a token that is second, after `other`."""
    return TokenLogprobs(np.array([token_id, other]), np.array([logprob, -0.1], np.float32), rank=2)

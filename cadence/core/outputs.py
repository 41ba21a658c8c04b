"""What users get back, with the names they know from vLLM."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from cadence.core.draft_stats import NO_DRAFTS, DraftStats
from cadence.core.failure import FailureCode

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


class Logprob(NamedTuple):
    logprob: float
    rank: int | None = None  # 1 = most likely
    decoded_token: str | None = None


PositionLogprobs = dict[int, Logprob]  # token id -> Logprob


@dataclass(slots=True)
class RequestMetrics:
    """Times in seconds on the monotonic clock; 0.0 while not reached."""

    arrival_time: float = 0.0
    first_scheduled_time: float = 0.0
    first_token_time: float = 0.0
    last_token_time: float = 0.0
    finished_time: float = 0.0
    num_preemptions: int = 0


@dataclass(slots=True)
class CompletionOutput:
    index: int
    text: str
    token_ids: Sequence[int]
    cumulative_logprob: float | None = None
    logprobs: Sequence[PositionLogprobs] | None = None  # a list, or FlatLogprobs
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    lora_request: object | None = None
    speculation: DraftStats = NO_DRAFTS  # of all its forwards so far
    drafted: Sequence[int] = ()  # places in token_ids of tokens that were drafts
    failure: FailureCode | None = None  # with finish_reason error; stop_reason is then its sentence

    def finished(self) -> bool:
        return self.finish_reason is not None


@dataclass(slots=True)
class RequestOutput:
    request_id: str
    prompt: str | None
    prompt_token_ids: list[int] | None
    prompt_logprobs: Sequence[PositionLogprobs | None] | None  # a list, or FlatLogprobs
    outputs: list[CompletionOutput]
    finished: bool
    metrics: RequestMetrics | None = None
    lora_request: object | None = None
    encoder_prompt: str | None = None
    encoder_prompt_token_ids: list[int] | None = None
    num_cached_tokens: int | None = None
    num_cache_creation_tokens: int | None = None
    kv_transfer_params: dict[str, object] | None = None
    ec_transfer_params: dict[str, object] | None = None
    speculation: DraftStats = NO_DRAFTS  # of all its completions together, so far
    warnings: list[str] = field(default_factory=list)  # options that were accepted and changed nothing
    pooled_np: npt.NDArray[np.float32] | None = None  # of a request for these in place of tokens


@dataclass(slots=True)
class BeamSearchSequence:
    tokens: list[int]
    text: str | None = None
    cum_logprob: float = 0.0
    logprobs: list[PositionLogprobs] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: int | str | None = None


@dataclass(slots=True)
class BeamSearchOutput:
    sequences: list[BeamSearchSequence]

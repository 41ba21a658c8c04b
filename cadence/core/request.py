"""A request as the engine core receives it: validated, tokenised, every default filled in."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from cadence.core.sampling_params import SamplingParams


class FinishReason(StrEnum):
    """Why a request ended. Every accepted request ends with exactly one of these."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class StopRule:
    """When a request ends by its tokens alone. Stop strings are the output processor's business."""

    eos_token_ids: frozenset[int]  # empty when ignore_eos is set; finish without a stop_reason
    stop_token_ids: frozenset[int]  # finish with the token as stop_reason
    min_tokens: int  # neither set applies before this many tokens were produced
    max_tokens: int  # resolved: never None, never beyond max_model_len


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """What crosses from the front (text) to the engine core (tokens)."""

    request_id: str
    prompt_token_ids: list[int]
    sampling: SamplingParams
    stop: StopRule
    seed: int  # 0 <= seed < 2**64, always set: given by the user or derived from the engine's
    arrival_time: float  # seconds, time.monotonic
    priority: int = 0  # lower runs first
    cache_salt: str = ""  # prefix-cache blocks are shared only between equal salts

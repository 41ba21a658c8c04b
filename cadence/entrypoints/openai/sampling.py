"""From a request's fields to `SamplingParams`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from cadence.core.errors import InvalidRequestError
from cadence.core.sampling_params import RequestOutputKind, SamplingParams
from cadence.entrypoints.openai.protocol.common import GenerationBody

_SAME_NAME = (
    "n", "frequency_penalty", "presence_penalty", "repetition_penalty", "temperature", "top_p", "top_k", "min_p",
    "seed", "stop", "stop_token_ids", "include_stop_str_in_output", "ignore_eos", "min_tokens", "skip_special_tokens",
    "spaces_between_special_tokens", "logit_bias", "allowed_token_ids", "bad_words", "prompt_logprobs",
    "stream_interval",
)  # fmt: skip


def sampling_params(
    body: GenerationBody, defaults: Mapping[str, Any], max_tokens: int | None, logprobs: int | None
) -> SamplingParams:
    """`defaults` are the model's own. A null in the body is as good as no field."""
    if body.best_of is not None and body.best_of != (body.n or 1):
        raise InvalidRequestError("best_of is not supported: ask for n completions and choose among them", "best_of")
    given = {name: value for name in _SAME_NAME if (value := getattr(body, name)) is not None}
    kind = RequestOutputKind.DELTA if body.stream else RequestOutputKind.FINAL_ONLY
    return SamplingParams(**{**defaults, **given, "max_tokens": max_tokens, "logprobs": logprobs, "output_kind": kind})


def model_max_tokens(defaults: Mapping[str, Any]) -> int | None:
    """For chats that set no limit: the model's own, or None, which is its length."""
    limit: int | None = defaults.get("max_tokens")
    return limit


def priority_of(body: GenerationBody, headers: Mapping[str, str]) -> int:
    """The body's, or that of the header X-Vllm-Priority; lower runs first."""
    if body.priority is not None:
        return body.priority
    given = headers.get("x-vllm-priority", "0")
    if not re.fullmatch(r"-?\d{1,9}", given):
        raise InvalidRequestError("the header X-Vllm-Priority must be an integer", "X-Vllm-Priority")
    return int(given)

"""From a request's fields to `SamplingParams`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Protocol

from cadence.core.errors import InvalidRequestError
from cadence.core.sampling_params import RequestOutputKind, SamplingParams
from cadence.core.structured_outputs import StructuredOutputsParams
from cadence.engine.text.input_processor import checked_rank, weight_of
from cadence.entrypoints.server.chat.request_errors import as_sent
from cadence.entrypoints.server.protocol.common import GenerationBody
from cadence.entrypoints.server.protocol.structured import one_of, structured_outputs

REPETITION_NAMES = {"max_pattern_size", "min_pattern_size", "min_count"}
MAX_WEIGHT = 2_000_000  # entries and characters of parameters, of all completions of a request

_PARAMETERS = {each.name for each in fields(SamplingParams)}
_READ_APART = ("best_of", "max_tokens", "repetition_detection", "speculative", "structured_outputs")  # below
# Fields of a body that are handed on as they are: every one with the name of a parameter.
SAME_NAME = tuple(name for name in GenerationBody.model_fields if name in _PARAMETERS and name not in _READ_APART)


@dataclass(frozen=True, slots=True)
class EndpointFields:
    """Parameters that endpoints know by names of their own."""

    max_tokens: int | None
    logprobs: int | None
    sent_names: Mapping[str, str] = field(default_factory=dict)  # name of a parameter -> the one the client sent
    logprob_token_ids: list[int] | None = None
    structured: StructuredOutputsParams | None = None  # where the endpoint has a field of its own for it


def sampling_params(body: GenerationBody, defaults: Mapping[str, Any], chosen: EndpointFields) -> SamplingParams:
    """`defaults` are the model's own. A null in the body is as good as no field."""
    check_best_of(body)
    given = {name: value for name in SAME_NAME if (value := getattr(body, name)) is not None}
    kind = RequestOutputKind.DELTA if body.stream else RequestOutputKind.FINAL_ONLY
    given |= {"max_tokens": chosen.max_tokens, "logprobs": chosen.logprobs, "output_kind": kind}
    if chosen.logprob_token_ids:
        given |= {"logprobs": None, "logprob_token_ids": chosen.logprob_token_ids}
    if body.repetition_detection is not None:
        given["repetition_detection"] = body.repetition_detection.model_dump(include=REPETITION_NAMES)
    if body.speculative is not None and body.speculative.num_tokens is not None:
        given["speculative"] = {"num_tokens": body.speculative.num_tokens}
    try:
        if (structured := one_of(chosen.structured, structured_outputs(body))) is not None:
            given["structured_outputs"] = structured
        return SamplingParams(**{**defaults, **given})
    except InvalidRequestError as error:
        raise as_sent(error, chosen.sent_names) from None


def check_best_of(body: GenerationBody) -> None:
    if body.best_of is not None and body.best_of != (body.n or 1):
        raise InvalidRequestError("best_of is not supported: ask for n completions and choose among them", "best_of")


def check_weight(params: SamplingParams, completions: int) -> None:
    """Each completion has a copy of the parameters: long lists are for few completions."""
    if weight_of(params) * completions > MAX_WEIGHT:
        raise InvalidRequestError(
            f"allowed_token_ids, stop_token_ids, logit_bias, bad_words, stop and what the output must be together, for "
            f"each of {completions} completions, must have at most {MAX_WEIGHT} entries and characters",
            "n" if params.n > 1 else "prompt",
        )


def model_max_tokens(defaults: Mapping[str, Any]) -> int | None:
    """For chats that set no limit: the model's own, or None, which is its length."""
    limit: int | None = defaults.get("max_tokens")
    return limit


class Prioritised(Protocol):
    priority: int | None


def priority_of(body: Prioritised, headers: Mapping[str, str]) -> int:
    """The body's, or that of the header X-Vllm-Priority; lower runs first."""
    if body.priority is not None:
        return body.priority
    given = headers.get("x-vllm-priority", "0")
    if not re.fullmatch("-?[0-9]{1,9}", given):
        raise InvalidRequestError("the header X-Vllm-Priority must be an integer", "X-Vllm-Priority")
    return int(given)


def rank_of(headers: Mapping[str, str], num_engines: int) -> int | None:
    """The engine that the header X-data-parallel-rank names; None = any."""
    given = headers.get("x-data-parallel-rank")
    is_number = given is not None and re.fullmatch("[0-9]{1,9}", given) is not None
    return checked_rank(int(given or "") if is_number else given, num_engines, "X-data-parallel-rank")

"""From a request's fields to a beam search."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cadence.core.errors import InvalidRequestError
from cadence.core.sampling_params import BeamSearchParams, RequestOutputKind, SamplingParams
from cadence.entrypoints.server.chat.request_errors import as_sent
from cadence.entrypoints.server.protocol.chat import ChatCompletionBody
from cadence.entrypoints.server.protocol.completions import CompletionBody
from cadence.entrypoints.server.protocol.sampling import SAME_NAME, EndpointFields, check_best_of
from cadence.entrypoints.server.protocol.structured import structured_outputs

_BEAM = "a beam search takes the likeliest tokens"
_NO_EFFECT = (
    "temperature", "top_p", "top_k", "min_p", "seed", "stream_interval", "spaces_between_special_tokens", "speculative",
)  # fmt: skip
_TAKEN = ("n", "ignore_eos", "include_stop_str_in_output", "skip_special_tokens")
_REFUSED = tuple(name for name in (*SAME_NAME, "repetition_detection") if name not in (*_TAKEN, *_NO_EFFECT))
_NEUTRAL: Mapping[str, tuple[Any, ...]] = {"repetition_penalty": (1,), "thinking_token_budget": (-1,)}


def beam_params(body: CompletionBody | ChatCompletionBody, chosen: EndpointFields, room: int) -> BeamSearchParams:
    """`room`: tokens where the client sets no limit."""
    check_best_of(body)
    for name in _REFUSED:
        value = getattr(body, name)
        if value and value not in _NEUTRAL.get(name, ()):
            raise InvalidRequestError(f"{name} cannot be used with use_beam_search", name)
    for name in _NO_EFFECT:
        if getattr(body, name) is not None:
            body.ignored.add(name, _BEAM)
    try:
        return BeamSearchParams(
            beam_width=body.n or 1,
            max_tokens=chosen.max_tokens or room,
            ignore_eos=bool(body.ignore_eos),
            length_penalty=1.0 if body.length_penalty is None else body.length_penalty,
            include_stop_str_in_output=bool(body.include_stop_str_in_output),
            structured_outputs=structured_outputs(body),
        )
    except InvalidRequestError as error:
        raise as_sent(error, chosen.sent_names) from None


def shape_of(beam: BeamSearchParams, chosen: EndpointFields) -> SamplingParams:
    """What the answer's shape and the request's weight are read off: nothing is drawn by it."""
    return SamplingParams(
        n=beam.beam_width,
        max_tokens=beam.max_tokens,
        logprobs=chosen.logprobs,
        output_kind=RequestOutputKind.FINAL_ONLY,
    )

"""What a user sees of a request, and in what two of them differ."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from cadence import RequestOutput
from cadence.core.outputs import BeamSearchOutput, CompletionOutput, PositionLogprobs

TOLERANCE = 1e-5  # of logprobs, and of entries of embeddings
Values = npt.NDArray[np.float32]


def difference(found: RequestOutput, wanted: RequestOutput) -> str:
    """The first that is found, "" if there is none."""
    if len(found.outputs) != len(wanted.outputs):
        return f"{len(found.outputs)} completions, not {len(wanted.outputs)}"
    pairs = zip(found.outputs, wanted.outputs, strict=True)
    told = [_of_completions(one, other) for one, other in pairs]
    told.append(_of_logprobs("prompt_logprobs", found.prompt_logprobs, wanted.prompt_logprobs))
    told.append(_of_values(found.pooled_np, wanted.pooled_np))
    return next(filter(None, told), "")


def _of_values(found: Values | None, wanted: Values | None) -> str:
    if found is None or wanted is None:
        return "" if found is wanted else "values in place of a text, or the other way round"
    return "" if np.allclose(found, wanted, rtol=0, atol=TOLERANCE) else f"values {found[:4]} …, not {wanted[:4]} …"


def search_difference(found: BeamSearchOutput, wanted: BeamSearchOutput) -> str:
    for one, other in zip(found.sequences, wanted.sequences, strict=True):
        if (one.tokens, one.text, one.finish_reason) != (other.tokens, other.text, other.finish_reason):
            return f"beam {one.tokens}, not {other.tokens}"
        if not math.isclose(one.cum_logprob, other.cum_logprob, abs_tol=10 * TOLERANCE):
            return f"a beam's logprob is {one.cum_logprob}, not {other.cum_logprob}"
    return ""


def begins_alike(found: RequestOutput, wanted: RequestOutput) -> str:
    """Of one that was aborted: what it got is the beginning of what it would have got."""
    (one,), (other,) = found.outputs, wanted.outputs
    count = len(one.token_ids)
    if one.finish_reason != "abort":
        return f"finish_reason is {one.finish_reason}, not abort"
    if list(one.token_ids) != list(other.token_ids)[:count]:
        return f"token_ids {one.token_ids}, not a beginning of {other.token_ids}"
    return _of_logprobs("logprobs", one.logprobs, None if other.logprobs is None else other.logprobs[:count])


def _of_completions(found: CompletionOutput, wanted: CompletionOutput) -> str:
    for name in ("token_ids", "finish_reason", "stop_reason", "text"):
        one, other = getattr(found, name), getattr(wanted, name)
        if one != other:
            return f"{name} {one!r}, not {other!r}"
    return _of_logprobs("logprobs", found.logprobs, wanted.logprobs)


def _of_logprobs(
    name: str, found: Iterable[PositionLogprobs | None] | None, wanted: Iterable[PositionLogprobs | None] | None
) -> str:
    many, others = list(found or ()), list(wanted or ())
    if len(many) != len(others) or (found is None) != (wanted is None):
        return f"{len(many)} {name}, not {len(others)}"
    for position, (one, other) in enumerate(zip(many, others, strict=True)):
        if not _same_position(one or {}, other or {}):
            return f"{name}[{position}] {one}, not {other}"
    return ""


def _same_position(found: PositionLogprobs, wanted: PositionLogprobs) -> bool:
    return found.keys() == wanted.keys() and all(
        math.isclose(found[token].logprob, entry.logprob, abs_tol=TOLERANCE)
        and (found[token].rank, found[token].decoded_token) == (entry.rank, entry.decoded_token)
        for token, entry in wanted.items()
    )

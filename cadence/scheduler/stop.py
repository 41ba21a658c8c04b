"""Whether a request ends with the tokens it has just got."""

from __future__ import annotations

from cadence.core.contract.request import FinishReason
from cadence.scheduler.request_state import RequestState

Verdict = tuple[FinishReason | None, int | None]  # (finish reason, stop reason); (None, None) = it goes on


def take_until_stop(request: RequestState, new: list[int]) -> Verdict:
    """Gives `new` tokens to the request, up to the one that ends it; what comes after is taken out of `new`."""
    for count, token in enumerate(new, 1):
        request.tokens.append(token)
        verdict = stop_verdict(request, token)
        if verdict[0] is not None:
            del new[count:]
            return verdict
    return None, None


def stop_verdict(request: RequestState, token: int) -> Verdict:
    """After `token`, the last of request.tokens."""
    rule = request.request.stop
    if request.num_output_tokens >= rule.min_tokens:
        if token in rule.eos_token_ids:
            return FinishReason.STOP, None
        if token in rule.stop_token_ids:
            return FinishReason.STOP, token
    if len(request.tokens) >= request.max_len:
        return FinishReason.LENGTH, None
    return None, None

"""Whether a request ends with the token it has just got."""

from __future__ import annotations

from cadence.core.request import FinishReason
from cadence.scheduler.request_state import RequestState


def stop_verdict(request: RequestState, token: int) -> tuple[FinishReason | None, int | None]:
    """(finish reason, stop reason) after `token`, the last of request.tokens; (None, None) = it goes on."""
    rule = request.request.stop
    if request.num_output_tokens >= rule.min_tokens:
        if token in rule.eos_token_ids:
            return FinishReason.STOP, None
        if token in rule.stop_token_ids:
            return FinishReason.STOP, token
    if len(request.tokens) >= request.max_len:
        return FinishReason.LENGTH, None
    return None, None

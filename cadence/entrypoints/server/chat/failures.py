"""Choices that ended without an answer: one place that raises what their clients are told."""

from __future__ import annotations

from cadence.core.request import NO_CHOICE
from cadence.entrypoints.server.chat.events import MISSING_CALL, ChatEvent, ChoiceEnd
from cadence.entrypoints.server.http.errors import ApiError

_NO_CALL = "tool_calls could not be produced: the model's answer is not the call that tool_choice demands"


def check_event(event: ChatEvent) -> None:
    if type(event) is ChoiceEnd:
        raise_failure(event.finish_reason, event.stop_reason)


def raise_failure(finish_reason: str | None, why: int | str | None) -> None:
    """A choice that ended badly is no answer."""
    if finish_reason == MISSING_CALL:
        raise ApiError(400, _NO_CALL, param="tool_choice", code="tool_calls_not_produced")
    if finish_reason == "error" and why == NO_CHOICE:
        raise ApiError(400, f"The request failed: {NO_CHOICE}.", code="no_token_left")
    if finish_reason == "error":
        raise ApiError(500, f"The request failed: {why or 'no reason was given'}.")
    if finish_reason == "abort":
        raise ApiError(503, "The request was aborted by the server.", code="aborted")

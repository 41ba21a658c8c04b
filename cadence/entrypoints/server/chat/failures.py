"""Choices that ended without an answer: one place that raises what their clients are told."""

from __future__ import annotations

from cadence.core.failure import FailureCode
from cadence.core.outputs import CompletionOutput
from cadence.entrypoints.server.chat.events import MISSING_CALL, ChatEvent, ChoiceEnd
from cadence.entrypoints.server.http.errors import ApiError

_NO_CALL = "tool_calls could not be produced: the model's answer is not the call that tool_choice demands"
_BY_REQUEST = (FailureCode.NO_TOKEN_LEFT, FailureCode.BAD_GRAMMAR, FailureCode.BAD_ADAPTER)


def check_event(event: ChatEvent) -> None:
    if type(event) is ChoiceEnd:
        raise_failure(event)


def raise_failure(choice: ChoiceEnd | CompletionOutput) -> None:
    """A choice that ended badly is no answer."""
    finish_reason, why = choice.finish_reason, choice.stop_reason
    if finish_reason == MISSING_CALL:
        raise ApiError(400, _NO_CALL, param="tool_choice", code="tool_calls_not_produced")
    if choice.failure is FailureCode.BAD_GRAMMAR:
        field = str(why).partition(" ")[0]  # the sentence begins with it
        raise ApiError(400, f"The request failed: {why}.", param=field, code=choice.failure)
    if choice.failure in _BY_REQUEST:
        raise ApiError(400, f"The request failed: {why}.", code=choice.failure)
    if choice.failure in (FailureCode.BUSY, FailureCode.ENGINE_DOWN):
        raise ApiError(503, f"The request failed: {why}.", code=choice.failure)
    if finish_reason == "error":
        raise ApiError(500, f"The request failed: {why or 'no reason was given'}.")
    if finish_reason == "abort":
        raise aborted()


def aborted() -> ApiError:
    return ApiError(503, "The request was aborted by the server.", code="aborted")

"""Why a request ends with an error: a code for the program, a sentence for its reader."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class FailureCode(StrEnum):
    NO_TOKEN_LEFT = "no_token_left"  # by the request's own parameters
    BAD_LOGITS = "bad_logits"  # NaN or infinite, from the model
    LOGITS_PROCESSOR = "logits_processor"  # one of the user's raised
    BAD_GRAMMAR = "bad_grammar"  # what the output must look like cannot be compiled or followed within its limits
    BAD_ADAPTER = "bad_adapter"  # it cannot be read, or does not fit the model or its limits
    BUSY = "busy"  # too much of what it needs is under way: it may be tried again
    NOT_ACCEPTED = "not_accepted"  # the engine could not take the request
    ENGINE_DIED = "engine_died"  # with this request in it, too often
    ENGINE_DOWN = "engine_down"  # it lacks ranks of other machines; the request may be tried again


@dataclass(frozen=True, slots=True)
class Failure:
    code: FailureCode
    message: str

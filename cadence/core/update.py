"""What the scheduler tells the front about one request after a step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cadence.core.draft_stats import Run
from cadence.core.failure import Failure
from cadence.core.request import FinishReason
from cadence.core.step import PromptLogprobs, TokenLogprobs


@dataclass(slots=True)
class RequestUpdate:
    """News of one request. The last one of a request, and only that, carries a finish reason."""

    request_id: str
    new_token_ids: list[int]  # in order; a burst may bring several at once
    logprobs: Sequence[TokenLogprobs]  # one per new token, or empty when none were asked for
    prompt_logprobs: Sequence[PromptLogprobs]  # parts of the prompt in order, none twice
    finish_reason: FinishReason | None
    stop_reason: int | Failure | None  # the stop token, or why it failed
    num_cached_tokens: int  # prompt tokens found in the prefix cache when the request was first admitted
    num_preemptions: int
    first_scheduled_time: float  # seconds, time.monotonic; 0.0 = never scheduled
    runs: Sequence[Run] = ()  # of each forward that brought tokens, in order; empty where no draft was verified
    complete: bool = False  # it ended without a stop token: the last token is part of the output
    adapter: str = ""  # the digest of its adapter, with its first tokens from an engine
    engine: int = 0  # which of several engines said so; the front writes it

    @classmethod
    def end(cls, request_id: str, reason: FinishReason, failure: Failure | None = None) -> RequestUpdate:
        """The end of a request that no step brought."""
        return cls(request_id, [], (), (), reason, failure, 0, 0, 0.0)

    @classmethod
    def tokens(cls, request_id: str, token_ids: Sequence[int]) -> RequestUpdate:
        """Tokens that no step brought."""
        return cls(request_id, list(token_ids), (), (), None, None, 0, 0, 0.0)

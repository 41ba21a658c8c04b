"""What the scheduler tells the front about one request after a step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import ClassVar

from cadence.core.contract.request import FinishReason
from cadence.core.contract.step import FloatArray, PromptLogprobs, TokenLogprobs
from cadence.core.draft_stats import Run
from cadence.core.failure import Failure


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
    digests: tuple[tuple[str, str], ...] = ()  # (feature, digest of what is attached for it), with its first tokens
    pooled_np: FloatArray | None = None  # with its end: what its hidden states were made into
    engine: int = 0  # which of several engines said so; the front writes it
    number: int = 0  # by which its engine speaks of it in `TokenUpdates` from now on; 0 = its engine does not

    @classmethod
    def end(cls, request_id: str, reason: FinishReason, failure: Failure | None = None) -> RequestUpdate:
        """The end of a request that no step brought."""
        return cls(request_id, [], (), (), reason, failure, 0, 0, 0.0)

    @classmethod
    def tokens(cls, request_id: str, token_ids: Sequence[int]) -> RequestUpdate:
        """Tokens that no step brought."""
        return cls(request_id, list(token_ids), (), (), None, None, 0, 0, 0.0)


@dataclass(slots=True)
class TokenUpdates:
    """Tokens of requests that go on, and have no other news: so it is with most rows of most steps. By number, as an
    earlier `RequestUpdate` of each has it."""

    numbers: list[int] = field(default_factory=list)  # each at most once in a step
    token_ids: list[int] = field(default_factory=list)  # of all requests, those of one request together
    counts: list[int] = field(default_factory=list)  # tokens of each; empty = one each

    def __post_init__(self) -> None:
        """Raises ValueError where these do not add up."""
        if self.counts and len(self.counts) != len(self.numbers):
            raise ValueError("numbers and counts do not add up")
        if (sum(self.counts) if self.counts else len(self.numbers)) != len(self.token_ids):
            raise ValueError("numbers and tokens do not add up")

    def __bool__(self) -> bool:
        return bool(self.numbers)

    def extend(self, numbers: list[int], new_token_ids: list[list[int]]) -> None:
        """By tokens of each number, at least one."""
        token_ids = list(chain.from_iterable(new_token_ids))
        if self.counts or len(token_ids) > len(numbers):
            self.counts = self.counts or [1] * len(self.numbers)
            self.counts += map(len, new_token_ids)
        self.numbers += numbers
        self.token_ids += token_ids

    def each(self) -> Iterator[tuple[int, list[int]]]:
        """(number, its tokens)"""
        if not self.counts:
            yield from zip(self.numbers, ([token_id] for token_id in self.token_ids), strict=True)
            return
        first = 0
        for number, count in zip(self.numbers, self.counts, strict=True):
            yield number, self.token_ids[first : first + count]
            first += count


@dataclass(slots=True)
class RequestTokens:
    """What a front makes of one entry of `TokenUpdates`: new tokens of a request that goes on, and nothing else."""

    request_id: str
    new_token_ids: list[int]
    engine: int = 0  # as `RequestUpdate` has it

    finish_reason: ClassVar[None] = None


AnyUpdate = RequestUpdate | RequestTokens

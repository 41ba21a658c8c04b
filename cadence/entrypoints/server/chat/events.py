"""A chat answer as it comes into being, free of any wire format: the OpenAI, responses and Anthropic routes each
write these events down in their own words."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cadence.core.failure import FailureCode
from cadence.core.lora_request import LoRARequest
from cadence.core.outputs import PositionLogprobs
from cadence.core.sampling_params import BeamSearchParams, SamplingParams
from cadence.entrypoints.media.pending import NO_PENDING, PendingMedia
from cadence.entrypoints.server.chat.truncation import NO_TRUNCATION, Truncation
from cadence.entrypoints.server.http.admission import estimate_tokens


def _forget(token_ids: Sequence[int]) -> None:
    """Of most answers no tokens are kept."""


@dataclass(frozen=True, slots=True)
class ChatJob:
    """What any chat route asks of the model. Everything is validated for shape; the engine checks the rest."""

    request_id: str
    messages: Sequence[Mapping[str, Any]]
    params: SamplingParams  # output_kind DELTA when `stream`, else FINAL_ONLY
    stream: bool
    media: PendingMedia = NO_PENDING  # what parts of messages show, in order
    tools: Sequence[Mapping[str, Any]] = ()  # OpenAI's shape: {"type": "function", "function": {...}}
    tool_choice: str = "none"  # "none", "auto", "required", or the name of a function
    parallel_calls: bool = True  # more than one call at once
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    continue_thought: bool = False  # the final message is a thought, and no more
    chat_template: str = ""  # "" = the engine's
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    cache_salt: str = ""
    tenant: str = ""
    data_parallel_rank: int | None = None  # the engine that it is for
    truncation: Truncation = NO_TRUNCATION
    add_special_tokens: bool = False  # beside those that the template writes
    priority: int = 0
    adapter: LoRARequest | None = None  # that the model answers with
    beam: BeamSearchParams | None = None  # instead of `params`, of which only the shape of the answer counts then
    max_output: int | None = None  # the client's own limit: it must fit after the prompt
    sent_names: Mapping[str, str] = field(default_factory=dict)  # name in the engine -> the one the client sent
    id_seed: str = ""  # of the ids of tool calls; "" = any
    told_tokens: Sequence[int] = ()  # of an answer that is made again: it begins with these
    record: Callable[[Sequence[int]], None] = _forget  # hears of tokens before there are events of them

    @property
    def of_adapter(self) -> dict[str, Any]:
        """What the engine is told of it."""
        return {} if self.adapter is None else {"lora_request": self.adapter}

    @property
    def messages_field(self) -> str:
        """Where the client wrote what became the prompt."""
        return self.sent_names.get("prompt", "messages")

    def estimated_tokens(self) -> int:
        """Of everything that may become part of the prompt."""
        return sum(map(estimate_tokens, (self.messages, self.tools, self.template_kwargs)))


@dataclass(frozen=True, slots=True)
class PromptRead:
    """First event, once: the prompt was tokenised and admitted."""

    prompt_token_ids: Sequence[int]
    prompt_logprobs: Sequence[PositionLogprobs | None] | None = None
    prompt_text: str = ""


@dataclass(frozen=True, slots=True)
class TextDelta:
    index: int  # which of the n choices
    text: str
    token_ids: Sequence[int] = ()
    logprobs: Sequence[PositionLogprobs] | None = None
    drafted: Sequence[int] = ()  # places in token_ids of tokens that were drafts


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    index: int
    text: str
    token_ids: Sequence[int] = ()
    logprobs: Sequence[PositionLogprobs] | None = None
    drafted: Sequence[int] = ()  # places in token_ids of tokens that were drafts


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """The first of a call carries its name and id; the arguments' JSON text comes in pieces."""

    index: int
    call: int  # which call of this choice: 0, 1, …
    call_id: str
    name: str  # "" after the first
    arguments: str
    token_ids: Sequence[int] = ()
    logprobs: Sequence[PositionLogprobs] | None = None
    drafted: Sequence[int] = ()  # places in token_ids of tokens that were drafts


class LastText(TextDelta):
    """The choice's end follows at once."""


class LastReasoning(ReasoningDelta):
    """The choice's end follows at once."""


class LastToolCall(ToolCallDelta):
    """The choice's end follows at once."""


MISSING_CALL = "missing_call"  # the model did not write the tool call that the request demands


@dataclass(frozen=True, slots=True)
class ChoiceEnd:
    index: int
    finish_reason: str  # stop | length | tool_calls | repetition | abort | error | MISSING_CALL
    stop_reason: int | str | None = None
    failure: FailureCode | None = None  # with finish_reason error


@dataclass(frozen=True, slots=True)
class Usage:
    """Last event, once."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    reasoning_tokens: int = 0


Delta = TextDelta | ReasoningDelta | ToolCallDelta
ChatEvent = PromptRead | TextDelta | ReasoningDelta | ToolCallDelta | ChoiceEnd | Usage

"""The body of /v1/responses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from pydantic import Field

from cadence.core.errors import InvalidRequestError
from cadence.core.structured_outputs import StructuredOutputsParams
from cadence.entrypoints.server.protocol.body import BodyPart
from cadence.entrypoints.server.protocol.chat import Tools
from cadence.entrypoints.server.protocol.common import INT64, GenerationBody, Variables, at_most
from cadence.entrypoints.server.protocol.structured import of_format
from cadence.entrypoints.server.protocol.unsupported import HintField, RefusedField, Unsupported

MAX_ITEMS = 4096
MAX_METADATA = 16  # pairs
MAX_TOP_LOGPROBS = 20
MAX_INCLUDE = 64
ENCRYPTED_REASONING = "reasoning.encrypted_content"
LOGPROBS = "message.output_text.logprobs"

Items = Annotated[list[dict[str, Any]], Field(max_length=MAX_ITEMS, fail_fast=True), at_most(MAX_ITEMS)]
Include = Annotated[list[str], Field(max_length=MAX_INCLUDE, fail_fast=True), at_most(MAX_INCLUDE)]

_UNSUPPORTED: dict[str, Unsupported] = {
    "conversation": RefusedField((), "this server keeps no conversations; use previous_response_id"),
    "context_management": HintField((), "prompts are shortened by truncation: auto, and by nothing else"),
    "client_metadata": HintField((), "this server keeps no accounts"),
    "moderation": HintField((), "this server does not judge content"),
    "prompt": RefusedField((), "this server keeps no prompt templates; send the input itself"),
    "n": RefusedField((1,), "a response has one output"),
    "max_tokens": RefusedField((), "here it is called max_output_tokens"),
    "prompt_logprobs": RefusedField((), "logprobs are given by /v1/chat/completions"),
    "truncate_prompt_tokens": RefusedField((), "here it is truncation: auto"),
    "return_token_ids": RefusedField((False,), "token ids are given by /v1/chat/completions"),
    "return_tokens_as_token_ids": RefusedField((False,), "token ids are given by /v1/chat/completions"),
    "previous_input_messages": RefusedField((), "a conversation goes on from previous_response_id or is sent as input"),
}


class TextConfig(BodyPart):
    format: dict[str, Any] | None = None
    verbosity: str | None = None


class ReasoningConfig(BodyPart):
    effort: str | None = Field(None, max_length=64)
    summary: str | None = None
    generate_summary: str | None = None


class ResponsesBody(GenerationBody):
    unsupported: ClassVar[Mapping[str, Unsupported]] = _UNSUPPORTED

    input: str | Items
    instructions: str | None = None
    previous_response_id: str | None = Field(None, max_length=128)
    include: Include | None = None
    background: bool | None = None
    truncation: str | None = Field(None, pattern="^(auto|disabled)$")
    max_tool_calls: int | None = Field(None, ge=0, lt=INT64)
    max_output_tokens: int | None = Field(None, ge=1, lt=INT64)
    seed: int | None = Field(None, ge=-INT64, lt=INT64)
    top_logprobs: int | None = Field(None, ge=0, le=MAX_TOP_LOGPROBS)
    tools: Tools | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    text: TextConfig | None = None
    reasoning: ReasoningConfig | None = None
    include_reasoning: bool | None = None  # false: thoughts are not told
    enable_response_messages: bool | None = None  # tell what the model read and wrote, tags and all
    chat_template: str | None = Field(None, max_length=262_144)
    chat_template_kwargs: Variables | None = None

    # Told back in the response.
    metadata: Variables | None = None
    store: bool | None = None  # kept for previous_response_id unless false
    user: str | None = Field(None, max_length=4096)

    def check(self) -> None:
        """What types alone do not say."""
        self._check_text()
        if self.input == [] and not (self.instructions or self.previous_response_id):
            raise InvalidRequestError("input is empty, and there is nothing else to answer", "input")
        for key, value in (self.metadata or {}).items():
            if not isinstance(value, str) or len(self.metadata or ()) > MAX_METADATA:
                raise InvalidRequestError(f"metadata must be at most {MAX_METADATA} strings by name", "metadata")
            if len(key) > 64 or len(value) > 512:
                raise InvalidRequestError("metadata: names have 64 characters and values 512 at most", "metadata")
        if self.background and self.store is False:
            message = "background can only be used when `store` is true: how else could the response be asked for"
            raise InvalidRequestError(message, "background")
        if self.max_tool_calls is not None:
            self.ignored.add("max_tool_calls", "tools are called by the client, which may count them")
        for number, name in enumerate(self.include or ()):
            if name not in (ENCRYPTED_REASONING, LOGPROBS):
                self.ignored.add(f"include[{number}]", "responses hold text, calls and reasoning, and nothing else")
        if self.reasoning is not None:
            for name in ("summary", "generate_summary"):
                why = "reasoning is given in full, not in summary"
                HintField(("auto",), why).check(f"reasoning.{name}", getattr(self.reasoning, name), self.ignored)

    def items(self) -> list[dict[str, Any]]:
        """The input as items; a text is what the user says."""
        if isinstance(self.input, str):
            return [{"type": "message", "role": "user", "content": self.input}]
        return list(self.input)

    def num_logprobs(self) -> int | None:
        """How many of the likeliest tokens are told of each place; None = no logprobs at all."""
        return self.top_logprobs or 0 if self.top_logprobs or LOGPROBS in (self.include or ()) else None

    def template_kwargs(self) -> dict[str, Any]:
        kwargs: dict[str, Any] = {}
        if self.reasoning is not None and self.reasoning.effort is not None:
            kwargs["reasoning_effort"] = self.reasoning.effort
            if self.reasoning.effort == "none":
                kwargs["enable_thinking"] = False
        return kwargs | (self.chat_template_kwargs or {})

    def structured(self) -> StructuredOutputsParams | None:
        """What the output must be; None = whatever the model says."""
        return None if self.text is None else of_format(self.text.format, "text.format", flat=True)

    def _check_text(self) -> None:
        if self.text is None:
            return
        why = "models here have no setting for it; say it in the input"
        HintField(("medium",), why).check("text.verbosity", self.text.verbosity, self.ignored)

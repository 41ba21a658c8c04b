"""The body of /v1/chat/completions."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from cadence.core.errors import InvalidRequestError
from cadence.entrypoints.server.protocol.common import (
    INT64,
    MAX_PARTS,
    GenerationBody,
    LogprobIds,
    ShownDrafts,
    Variables,
    at_most,
    check_beam,
    check_count,
)
from cadence.entrypoints.server.protocol.json_text import check_arguments

MAX_MESSAGES = 4096
MAX_TOOLS = 128
MAX_DOCUMENTS = 1024
MAX_NAME = 128  # characters of a function's name
CHOICES = ("none", "auto", "required")  # words of tool_choice; no function has one as its name

Messages = Annotated[
    list[dict[str, Any]], Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True), at_most(MAX_MESSAGES)
]
Tools = Annotated[list[dict[str, Any]], Field(max_length=MAX_TOOLS, fail_fast=True), at_most(MAX_TOOLS)]
Documents = Annotated[list[dict[str, Any]], Field(max_length=MAX_DOCUMENTS, fail_fast=True), at_most(MAX_DOCUMENTS)]


class ChatCompletionBody(GenerationBody):
    messages: Messages
    max_completion_tokens: int | None = Field(default=None, ge=1, lt=INT64)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(default=None, ge=-1, lt=INT64)
    tools: Tools | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    include_reasoning: bool | None = None

    logprob_token_ids: LogprobIds | None = None
    use_beam_search: bool | None = None
    length_penalty: float | None = None
    speculative: ShownDrafts | None = None

    echo: bool | None = None
    return_prompt_text: bool | None = None
    truncate_prompt_tokens: int | None = Field(default=None, ge=-1, lt=INT64)  # keep this many; -1 = what fits
    truncation_side: str | None = Field(default=None, pattern="^(left|right)$")  # where tokens are cut off: left
    add_special_tokens: bool | None = None  # beside those the template writes; False
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template: str | None = Field(default=None, max_length=262_144)
    chat_template_kwargs: Variables | None = None
    documents: Documents | None = None
    media_io_kwargs: Variables | None = None
    mm_processor_kwargs: Variables | None = None

    def check(self) -> None:
        """What types alone do not say."""
        self.check_stream_options()
        for number, message in enumerate(self.messages):
            check_message(message, f"messages[{number}]")
        if self.top_logprobs and not self.logprobs:
            raise InvalidRequestError("top_logprobs needs logprobs to be true", "top_logprobs")
        if self.logprob_token_ids and not self.logprobs:
            raise InvalidRequestError("logprob_token_ids needs logprobs to be true", "logprob_token_ids")
        check_beam(self)
        for number, tool in enumerate(self.tools or ()):
            _check_tool(tool, f"tools[{number}]")

    def choice(self) -> str:
        """none, auto, required, or the name of one of the tools."""
        chosen = self.tool_choice
        if chosen is None:
            return "auto" if self.tools else "none"
        if isinstance(chosen, str):
            if chosen not in CHOICES:
                raise InvalidRequestError("tool_choice must be none, auto, required or name a function", "tool_choice")
            if chosen == "required" and not self.tools:
                raise InvalidRequestError("tool_choice is required, but there are no tools", "tool_choice")
            return chosen if self.tools else "none"
        return self._named(chosen)

    def template_kwargs(self) -> dict[str, Any]:
        """More variables for the template. `reasoning_effort` also turns the common switch, on or off."""
        kwargs: dict[str, Any] = {}
        if self.documents is not None:
            kwargs["documents"] = self.documents
        if self.reasoning_effort is not None:
            kwargs["reasoning_effort"] = self.reasoning_effort
            kwargs["enable_thinking"] = self.reasoning_effort != "none"
        return kwargs | (self.chat_template_kwargs or {})

    def _named(self, chosen: dict[str, Any]) -> str:
        function = chosen.get("function")
        name = function.get("name") if isinstance(function, dict) else None
        if chosen.get("type") != "function" or not isinstance(name, str):
            raise InvalidRequestError(
                'tool_choice must look like {"type": "function", "function": {"name": "..."}}', "tool_choice"
            )
        if name not in [tool["function"]["name"] for tool in self.tools or ()]:
            raise InvalidRequestError(f"tool_choice names {name[:MAX_NAME]!r}, which is not in tools", "tool_choice")
        return name


def check_message(message: dict[str, Any], where: str) -> None:
    """That it holds no more than a chat template should have to read."""
    check_count(message.get("content"), MAX_PARTS, f"{where}.content")
    calls = message.get("tool_calls")
    check_count(calls, MAX_PARTS, f"{where}.tool_calls")
    for number, call in enumerate(calls if isinstance(calls, list) else ()):
        function = call.get("function", call) if isinstance(call, dict) else None
        arguments = function.get("arguments") if isinstance(function, dict) else None
        if isinstance(arguments, str):
            check_arguments(arguments, f"{where}.tool_calls[{number}].function.arguments")


def _check_tool(tool: dict[str, Any], where: str) -> None:
    if tool.get("type", "function") != "function":
        raise InvalidRequestError(f"{where}.type must be function", f"{where}.type")
    function = tool.get("function")
    if not isinstance(function, dict):
        raise InvalidRequestError(f"{where}.function must be an object", f"{where}.function")
    check_name(function.get("name"), f"{where}.function.name")
    if not isinstance(function.get("parameters") or {}, dict):
        field = f"{where}.function.parameters"
        raise InvalidRequestError(f"{field} must be a JSON schema", field)


def check_name(name: object, where: str) -> None:
    if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME:
        raise InvalidRequestError(f"{where} must be a string of 1 to {MAX_NAME} characters", where)
    if name in CHOICES:
        raise InvalidRequestError(f"{where} must not be one of the words of tool_choice", where)

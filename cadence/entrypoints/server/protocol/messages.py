"""The bodies of /v1/messages and /v1/messages/count_tokens, in Anthropic's words, and how they become a chat."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any, ClassVar

from pydantic import Field

from cadence.core.errors import InvalidRequestError
from cadence.core.structured_outputs import StructuredOutputsParams
from cadence.entrypoints.server.http.errors import ApiError
from cadence.entrypoints.server.http.ignored import MAX_NAMED, Ignored
from cadence.entrypoints.server.protocol.body import BodyPart, RequestBody
from cadence.entrypoints.server.protocol.chat import Messages, Tools, check_name
from cadence.entrypoints.server.protocol.common import (
    INT64,
    DraftLimit,
    GenerationBody,
    StopStrings,
    Variables,
    string_of,
)
from cadence.entrypoints.server.protocol.message_blocks import chat_messages, has_calls, system_text
from cadence.entrypoints.server.protocol.structured import of_format
from cadence.entrypoints.server.protocol.unsupported import HintField, RefusedField, Unsupported

_TOOL_NAMES = ("name", "description", "input_schema", "type", "cache_control", "strict")
CHOICES = {"auto": "auto", "any": "required", "none": "none"}

_UNSUPPORTED: dict[str, Unsupported] = {
    "container": RefusedField((), "this server runs no tools of its own"),
    "context_management": HintField((), "prompts are never shortened; cut the messages before sending them"),
    "inference_geo": HintField((), "this server is where it is"),
    "mcp_servers": RefusedField((), "this server runs no tools of its own"),
    "speed": HintField(("standard",), "there is one speed: as fast as it goes"),
}


class OutputConfig(BodyPart):
    effort: str | None = Field(None, max_length=64)
    format: dict[str, Any] | None = None


class CountTokensBody(RequestBody):
    unsupported: ClassVar[Mapping[str, Unsupported]] = _UNSUPPORTED

    model: str | None = Field(None, max_length=1024)
    messages: Messages
    system: str | Messages | None = None
    tools: Tools | None = None
    tool_choice: dict[str, Any] | None = None
    thinking: dict[str, Any] | None = None
    # Prefixes are always cached, so marks for it change nothing.
    cache_control: dict[str, Any] | None = None

    output_config: OutputConfig | None = None
    thread: dict[str, Any] | None = None
    chat_template_kwargs: Variables | None = None

    def check(self) -> None:
        """What types alone do not say."""
        if self.thread:  # with this code clients send the whole conversation instead
            why = "thread is not supported: this server keeps no messages; send the whole conversation"
            raise ApiError(400, why, param="thread", code="thread_unsupported_request")
        if self.output_config is not None:
            why = "models here have no setting for it; say it in the system prompt"
            HintField((), why).check("output_config.effort", self.output_config.effort, self.ignored)

    def chat_messages(self) -> list[dict[str, Any]]:
        messages: list[dict[str, Any]] = []
        if self.system and (text := system_text(self.system, "system", self.ignored)):
            messages.append({"role": "system", "content": text})
        for number, message in enumerate(self.messages):
            messages += chat_messages(message, f"messages[{number}]", self.ignored)
        return messages

    def prefilled(self) -> bool:
        """Whether the last message is the beginning of the answer."""
        return self.messages[-1].get("role") == "assistant" and not has_calls(self.messages[-1])

    @cached_property
    def chat_tools(self) -> list[dict[str, Any]]:
        read = [_chat_tool(tool, f"tools[{number}]", self.ignored) for number, tool in enumerate(self.tools or ())]
        return [tool for tool in read if tool is not None]

    def choice(self) -> str:
        """none, auto, required, or the name of one of the tools."""
        tools = self.chat_tools
        if self.tool_choice is None:
            return "auto" if tools else "none"
        kind = self.tool_choice.get("type")
        if kind == "tool":
            return self._named(self.tool_choice.get("name"))
        if not isinstance(kind, str) or kind not in CHOICES:
            raise InvalidRequestError("tool_choice.type must be auto, any, tool or none", "tool_choice.type")
        if kind == "any" and not tools:
            raise InvalidRequestError("tool_choice is any, but there are no tools", "tool_choice")
        return CHOICES[kind] if tools else "none"

    def parallel_calls(self) -> bool:
        flag = (self.tool_choice or {}).get("disable_parallel_tool_use", False)
        if not isinstance(flag, bool):
            field = "tool_choice.disable_parallel_tool_use"
            raise InvalidRequestError(f"{field} must be true or false", field)
        return not flag

    def template_kwargs(self) -> dict[str, Any]:
        """Whether to think, and what the request says to the template by name."""
        named = self.chat_template_kwargs or {}
        if self.thinking is None:
            return named
        kind = self.thinking.get("type")
        if kind not in ("enabled", "disabled", "adaptive"):
            raise InvalidRequestError("thinking.type must be enabled, adaptive or disabled", "thinking.type")
        if self.thinking.get("display"):
            self.ignored.add("thinking.display", "thoughts are always told in full")
        return {"enable_thinking": kind != "disabled"} | named

    def structured(self) -> StructuredOutputsParams | None:
        """What the output must be; None = whatever the model says."""
        config = self.output_config
        return None if config is None else of_format(config.format, "output_config.format", flat=True)

    def thinking_budget(self) -> int | None:
        """None = none was set."""
        thinking = self.thinking or {}
        if thinking.get("type") != "enabled" or thinking.get("budget_tokens") is None:
            return None
        budget = thinking["budget_tokens"]
        if type(budget) is not int or not 0 <= budget < INT64:
            field = "thinking.budget_tokens"
            raise InvalidRequestError(f"{field} must be an integer of at least 0", field)
        return budget

    def _named(self, name: object) -> str:
        if not isinstance(name, str) or name not in [tool["function"]["name"] for tool in self.chat_tools]:
            raise InvalidRequestError("tool_choice.name must be the name of one of the tools", "tool_choice.name")
        return name


class MessagesBody(CountTokensBody):
    max_tokens: int = Field(ge=1, lt=INT64)
    stop_sequences: StopStrings | None = None
    stream: bool | None = None
    temperature: float | None = Field(None, ge=0, le=1)
    top_p: float | None = None
    top_k: int | None = None
    cache_salt: str | None = Field(None, min_length=1, max_length=1024)
    speculative: DraftLimit | None = None

    def check(self) -> None:
        super().check()
        if not all(self.stop_sequences or ()):
            raise InvalidRequestError("stop_sequences must not be empty strings", "stop_sequences")

    def generation(self, reasons: bool) -> GenerationBody:
        """`reasons`: the server knows this model's thoughts, and so may bound them."""
        budget = self.thinking_budget()
        if budget is not None and not reasons:
            self.ignored.add("thinking.budget_tokens", "this server was not told what thoughts look like")
        return GenerationBody(
            thinking_token_budget=budget if reasons else None,
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            stop=self.stop_sequences or None,
            stream=self.stream,
            speculative=self.speculative,
        )


def _chat_tool(tool: Mapping[str, Any], where: str, ignored: Ignored) -> dict[str, Any] | None:
    """None for a tool that Anthropic's servers would run."""
    if tool.get("type") not in (None, "custom"):
        ignored.add(where, "this server runs no tools of its own, only custom ones are offered")
        return None
    check_name(tool.get("name"), f"{where}.name")
    if not isinstance(tool.get("input_schema"), dict):
        raise InvalidRequestError(f"{where}.input_schema must be a JSON schema", f"{where}.input_schema")
    for name in [name for name in tool if name not in _TOOL_NAMES and tool[name]][:MAX_NAMED]:
        ignored.add(f"{where}.{name[:40]}", "tools are offered as they are")
    description = string_of(tool.get("description") or "", f"{where}.description")
    function = {"name": tool["name"], "description": description, "parameters": tool["input_schema"]}
    if tool.get("strict") is True:
        function["strict"] = True
    return {"type": "function", "function": function}

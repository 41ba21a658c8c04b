"""The body of /v1/responses, and how its items become the messages of a chat."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, ClassVar

from pydantic import Field

from cadence.core.errors import InvalidRequestError
from cadence.entrypoints.openai.protocol.body import BodyPart, OpenPart
from cadence.entrypoints.openai.protocol.chat import MAX_NAME, Tools
from cadence.entrypoints.openai.protocol.common import (
    INT64,
    MAX_PARTS,
    GenerationBody,
    Variables,
    at_most,
    check_count,
)
from cadence.entrypoints.openai.protocol.json_text import decode_arguments
from cadence.entrypoints.openai.protocol.unsupported import Hint, Refusal, Unsupported

MAX_ITEMS = 4096
MAX_METADATA = 16  # pairs

ROLES = {"user": "user", "assistant": "assistant", "system": "system", "developer": "system"}
TEXT_PARTS = {"input_text": "text", "output_text": "text", "text": "text", "refusal": "refusal"}  # type -> its field

Items = Annotated[list[dict[str, Any]], Field(min_length=1, max_length=MAX_ITEMS, fail_fast=True), at_most(MAX_ITEMS)]

_GRAMMAR = "output constrained by a grammar is not in this version"
_UNSUPPORTED: dict[str, Unsupported] = {
    "background": Refusal((False,), "responses run while their client waits; stream them instead"),
    "conversation": Refusal((), "this server keeps no conversations; use previous_response_id"),
    "context_management": Hint((), "prompts are never shortened; cut the input before sending it"),
    "include": Hint((), "responses always hold everything there is: text, calls and reasoning"),
    "max_tool_calls": Hint((), "tools are called by the client, which may count them"),
    "moderation": Hint((), "this server does not judge content"),
    "prompt": Refusal((), "this server keeps no prompt templates; send the input itself"),
    "top_logprobs": Refusal((0,), "logprobs are given by /v1/chat/completions"),
    "truncation": Refusal(("disabled",), "prompts are never shortened; cut the input before sending it"),
    "n": Refusal((1,), "a response has one output"),
    "max_tokens": Refusal((), "here it is called max_output_tokens"),
    "prompt_logprobs": Refusal((), "logprobs are given by /v1/chat/completions"),
    "truncate_prompt_tokens": Refusal((), "prompts are never shortened; cut the input before sending it"),
    "return_token_ids": Refusal((False,), "token ids are given by /v1/chat/completions"),
    "return_tokens_as_token_ids": Refusal((False,), "token ids are given by /v1/chat/completions"),
}


class TextFormat(OpenPart):
    type: str = "text"


class TextConfig(BodyPart):
    format: TextFormat | None = None
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
    max_output_tokens: int | None = Field(None, ge=1, lt=INT64)
    tools: Tools | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    text: TextConfig | None = None
    reasoning: ReasoningConfig | None = None
    chat_template: str | None = Field(None, max_length=262_144)
    chat_template_kwargs: Variables | None = None

    # Told back in the response.
    metadata: Variables | None = None
    store: bool | None = None  # kept for previous_response_id unless false
    user: str | None = Field(None, max_length=4096)

    def check(self) -> None:
        """What types alone do not say."""
        self._check_text()
        for key, value in (self.metadata or {}).items():
            if not isinstance(value, str) or len(self.metadata or ()) > MAX_METADATA:
                raise InvalidRequestError(f"metadata must be at most {MAX_METADATA} strings by name", "metadata")
            if len(key) > 64 or len(value) > 512:
                raise InvalidRequestError("metadata: names have 64 characters and values 512 at most", "metadata")
        if self.reasoning is not None:
            for name in ("summary", "generate_summary"):
                why = "reasoning is given in full, not in summary"
                Hint(("auto",), why).check(f"reasoning.{name}", getattr(self.reasoning, name), self.ignored)

    def items(self) -> list[dict[str, Any]]:
        """The input as items; a text is what the user says."""
        if isinstance(self.input, str):
            return [{"type": "message", "role": "user", "content": self.input}]
        return list(self.input)

    def chat_tools(self) -> list[dict[str, Any]]:
        """The tools in the shape of chat completions, which is the one templates know."""
        return [_chat_tool(tool, f"tools[{number}]") for number, tool in enumerate(self.tools or ())]

    def choice(self) -> str:
        """none, auto, required, or the name of one of the tools."""
        chosen = self.tool_choice
        if chosen is None:
            return "auto" if self.tools else "none"
        if isinstance(chosen, dict):
            return self._named(chosen)
        if chosen not in ("none", "auto", "required"):
            raise InvalidRequestError("tool_choice must be none, auto, required or name a function", "tool_choice")
        if chosen == "required" and not self.tools:
            raise InvalidRequestError("tool_choice is required, but there are no tools", "tool_choice")
        return chosen if self.tools else "none"

    def template_kwargs(self) -> dict[str, Any]:
        kwargs: dict[str, Any] = {}
        if self.reasoning is not None and self.reasoning.effort is not None:
            kwargs["reasoning_effort"] = self.reasoning.effort
            if self.reasoning.effort == "none":
                kwargs["enable_thinking"] = False
        return kwargs | (self.chat_template_kwargs or {})

    def _check_text(self) -> None:
        if self.text is None:
            return
        if self.text.format is not None and self.text.format.type != "text":
            kind = self.text.format.type[:40]
            raise InvalidRequestError(f"text.format.type {kind!r} is not supported: {_GRAMMAR}", "text.format.type")
        why = "models here have no setting for it; say it in the input"
        Hint(("medium",), why).check("text.verbosity", self.text.verbosity, self.ignored)

    def _named(self, chosen: Mapping[str, Any]) -> str:
        name = chosen.get("name")
        if chosen.get("type") != "function" or not isinstance(name, str):
            raise InvalidRequestError('tool_choice must look like {"type": "function", "name": "..."}', "tool_choice")
        if name not in [tool.get("name") for tool in self.tools or ()]:
            raise InvalidRequestError(f"tool_choice names {name[:MAX_NAME]!r}, which is not in tools", "tool_choice")
        return name


def _chat_tool(tool: Mapping[str, Any], where: str) -> dict[str, Any]:
    if tool.get("type") != "function":
        kind = str(tool.get("type"))[:40]
        raise InvalidRequestError(
            f"{where}.type is {kind!r}: this server runs no tools, only function", f"{where}.type"
        )
    check_name(tool.get("name"), f"{where}.name")
    if not isinstance(tool.get("parameters") or {}, dict):
        raise InvalidRequestError(f"{where}.parameters must be a JSON schema", f"{where}.parameters")
    if not isinstance(tool.get("description") or "", str):
        raise InvalidRequestError(f"{where}.description must be a string", f"{where}.description")
    kept = {key: tool[key] for key in ("name", "description", "parameters", "strict") if tool.get(key) is not None}
    return {"type": "function", "function": kept}


def check_name(name: object, where: str) -> None:
    if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME:
        raise InvalidRequestError(f"{where} must be a string of 1 to {MAX_NAME} characters", where)
    if name in ("none", "auto", "required"):
        raise InvalidRequestError(f"{where} must not be one of the words of tool_choice", where)


def to_messages(items: Sequence[Mapping[str, Any]], instructions: str | None) -> list[dict[str, Any]]:
    """Items as messages: neighbouring calls are one message, thoughts belong to what the assistant says next, and
    there is one system message, at the start, where the items begin with several."""
    reader = _ItemReader()
    if instructions:
        reader.add({"role": "system", "content": instructions})
    for number, item in enumerate(items):
        reader.read(item, f"input[{number}]")
    return reader.finish()


class _ItemReader:
    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        self._systems: list[str] = []  # more for the system message at the start
        self._thoughts: list[str] = []
        self._kinds: dict[str, Callable[[Mapping[str, Any], str], None]] = {
            "message": self._message,
            "function_call": self._call,
            "function_call_output": self._output,
            "reasoning": self._reasoning,
        }

    def read(self, item: Mapping[str, Any], where: str) -> None:
        kind = item.get("type") or "message"
        if not isinstance(kind, str) or kind not in self._kinds:
            known = ", ".join(self._kinds)
            raise InvalidRequestError(f"{where}.type is {str(kind)[:40]!r}: it must be one of {known}", f"{where}.type")
        self._kinds[kind](item, where)

    def add(self, message: dict[str, Any]) -> None:
        last = self.messages[-1] if len(self.messages) == 1 else {}
        if message["role"] == "system" == last.get("role"):
            self._systems.append(message["content"])
            return
        if message["role"] == "assistant" and (thoughts := "".join(self._thoughts)):
            message["reasoning_content"] = thoughts
        self._thoughts = []
        self.messages.append(message)

    def finish(self) -> list[dict[str, Any]]:
        if self._systems:
            self.messages[0]["content"] = "\n\n".join([self.messages[0]["content"], *self._systems])
        return self.messages

    def _message(self, item: Mapping[str, Any], where: str) -> None:
        role = item.get("role")
        if not isinstance(role, str) or role not in ROLES:
            raise InvalidRequestError(f"{where}.role must be one of {', '.join(ROLES)}", f"{where}.role")
        self.add({"role": ROLES[role], "content": content_text(item.get("content"), f"{where}.content")})

    def _call(self, item: Mapping[str, Any], where: str) -> None:
        check_name(item.get("name"), f"{where}.name")
        call_id = _string(item.get("call_id"), f"{where}.call_id")
        arguments = _string(item.get("arguments"), f"{where}.arguments")
        _check_arguments(arguments, f"{where}.arguments")
        call = {"id": call_id, "type": "function", "function": {"name": item["name"], "arguments": arguments}}
        if not self.messages or self.messages[-1]["role"] != "assistant":
            self.add({"role": "assistant", "content": "", "tool_calls": []})
        self.messages[-1].setdefault("tool_calls", []).append(call)

    def _output(self, item: Mapping[str, Any], where: str) -> None:
        call_id = _string(item.get("call_id"), f"{where}.call_id")
        self.add(
            {"role": "tool", "tool_call_id": call_id, "content": content_text(item.get("output"), f"{where}.output")}
        )

    def _reasoning(self, item: Mapping[str, Any], where: str) -> None:
        parts = item.get("content") or ()
        if not isinstance(parts, list):
            raise InvalidRequestError(f"{where}.content must be a list of parts", f"{where}.content")
        texts = [part.get("text") for part in parts if isinstance(part, dict)]
        self._thoughts += [text for text in texts if isinstance(text, str)]


def content_text(content: object, where: str) -> str:
    """A text, or the texts of its parts, one to a line."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise InvalidRequestError(f"{where} must be a string or a list of parts", where)
    check_count(content, MAX_PARTS, where)
    return "\n".join(_part_text(part, f"{where}[{number}]") for number, part in enumerate(content))


def _part_text(part: object, where: str) -> str:
    if not isinstance(part, dict):
        raise InvalidRequestError(f"{where} must be an object with a type", where)
    kind = part.get("type")
    if not isinstance(kind, str) or kind not in TEXT_PARTS:
        raise InvalidRequestError(f"{where}.type is {str(kind)[:40]!r}: this model reads text only", f"{where}.type")
    return _string(part.get(TEXT_PARTS[kind]), f"{where}.{TEXT_PARTS[kind]}")


def _string(value: object, where: str) -> str:
    if not isinstance(value, str):
        raise InvalidRequestError(f"{where} must be a string", where)
    return value


def _check_arguments(arguments: str, where: str) -> None:
    if not isinstance(decode_arguments(arguments or "{}", where), dict):
        raise InvalidRequestError(f"{where} must be a JSON object", where)

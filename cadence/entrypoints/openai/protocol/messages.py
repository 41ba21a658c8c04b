"""The bodies of /v1/messages and /v1/messages/count_tokens, in Anthropic's words, and how they become a chat."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import Field

from cadence.core.errors import InvalidRequestError
from cadence.entrypoints.openai.errors import ApiError
from cadence.entrypoints.openai.protocol.body import BodyPart, RequestBody
from cadence.entrypoints.openai.protocol.chat import Messages, Tools
from cadence.entrypoints.openai.protocol.common import (
    INT64,
    MAX_PARTS,
    GenerationBody,
    StopStrings,
    check_count,
)
from cadence.entrypoints.openai.protocol.response_tools import check_name
from cadence.entrypoints.openai.protocol.unsupported import Hint, Refusal, Unsupported

HOSTED = "this server runs no tools; the model is not told of it"
CHOICES = {"auto": "auto", "any": "required", "none": "none"}

_UNSUPPORTED: dict[str, Unsupported] = {
    "container": Refusal((), "this server runs no tools of its own"),
    "context_management": Hint((), "prompts are never shortened; cut the messages before sending them"),
    "inference_geo": Hint((), "this server is where it is"),
    "mcp_servers": Refusal((), "this server runs no tools of its own"),
    "speed": Hint(("standard",), "there is one speed: as fast as it goes"),
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

    def check(self) -> None:
        """What types alone do not say."""
        if self.thread:  # with this code clients send the whole conversation instead
            why = "thread is not supported: this server keeps no messages; send the whole conversation"
            raise ApiError(400, why, param="thread", code="thread_unsupported_request")
        if self.output_config is not None:
            why = "output constrained by a grammar is not in this version"
            Refusal((), why).check("output_config.format", self.output_config.format, self.ignored)
            why = "models here have no setting for it; say it in the system prompt"
            Hint((), why).check("output_config.effort", self.output_config.effort, self.ignored)

    def chat_messages(self) -> list[dict[str, Any]]:
        messages: list[dict[str, Any]] = []
        if self.system:
            messages.append({"role": "system", "content": _text(self.system, "system")})
        for number, message in enumerate(self.messages):
            messages += _chat_messages(message, f"messages[{number}]")
        return messages

    def prefilled(self) -> bool:
        """Whether the last message is the beginning of the answer."""
        return self.messages[-1].get("role") == "assistant" and not _has_calls(self.messages[-1])

    def chat_tools(self) -> list[dict[str, Any]]:
        """Those that the client runs: the others are named as ignored."""
        offered = []
        for number, tool in enumerate(self.tools or ()):
            if _runs_at_client(tool):
                offered.append(_chat_tool(tool, f"tools[{number}]"))
            else:
                self.ignored.add(f"tools[{number}]", HOSTED)
        return offered

    def choice(self) -> str:
        """none, auto, required, or the name of one of the tools."""
        if self.tool_choice is None:
            return "auto" if self._names() else "none"
        kind = self.tool_choice.get("type")
        if kind == "tool":
            return self._named(self.tool_choice.get("name"))
        if not isinstance(kind, str) or kind not in CHOICES:
            raise InvalidRequestError("tool_choice.type must be auto, any, tool or none", "tool_choice.type")
        if kind == "any" and not self._names():
            raise InvalidRequestError("tool_choice is any, but there are no tools", "tool_choice")
        return CHOICES[kind] if self._names() else "none"

    def parallel_calls(self) -> bool:
        flag = (self.tool_choice or {}).get("disable_parallel_tool_use", False)
        if not isinstance(flag, bool):
            field = "tool_choice.disable_parallel_tool_use"
            raise InvalidRequestError(f"{field} must be true or false", field)
        return not flag

    def template_kwargs(self) -> dict[str, Any]:
        """Whether to think. How long is bounded by max_tokens alone."""
        if self.thinking is None:
            return {}
        kind = self.thinking.get("type")
        if kind not in ("enabled", "disabled", "adaptive"):
            raise InvalidRequestError("thinking.type must be enabled, adaptive or disabled", "thinking.type")
        return {"enable_thinking": kind != "disabled"}

    def _names(self) -> list[object]:
        return [tool.get("name") for tool in self.tools or () if _runs_at_client(tool)]

    def _named(self, name: object) -> str:
        if not isinstance(name, str) or name not in self._names():
            raise InvalidRequestError("tool_choice.name must be the name of one of the tools", "tool_choice.name")
        return name


class MessagesBody(CountTokensBody):
    max_tokens: int = Field(ge=1, lt=INT64)
    stop_sequences: StopStrings | None = None
    stream: bool | None = None
    temperature: float | None = Field(None, ge=0, le=1)
    top_p: float | None = None
    top_k: int | None = None

    def check(self) -> None:
        super().check()
        if not all(self.stop_sequences or ()):
            raise InvalidRequestError("stop_sequences must not be empty strings", "stop_sequences")

    def generation(self) -> GenerationBody:
        return GenerationBody(
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            stop=self.stop_sequences or None,
            stream=self.stream,
        )


def _chat_messages(message: Mapping[str, Any], where: str) -> list[dict[str, Any]]:
    role, content = message.get("role"), message.get("content")
    if role not in ("user", "assistant", "system"):
        raise InvalidRequestError(f"{where}.role must be user or assistant", f"{where}.role")
    if isinstance(content, str):
        return [{"role": role, "content": content}]
    if not isinstance(content, list):
        raise InvalidRequestError(f"{where}.content must be a string or a list of blocks", f"{where}.content")
    check_count(content, MAX_PARTS, f"{where}.content")
    if role == "assistant":
        return [_assistant(content, f"{where}.content")]
    if role == "user":
        return _user(content, f"{where}.content")
    return [{"role": role, "content": _text(content, f"{where}.content")}]


def _user(blocks: list[Any], where: str) -> list[dict[str, Any]]:
    """Results of tools are messages of their own."""
    messages: list[dict[str, Any]] = []
    texts: list[str] = []  # of the blocks since the last result
    for number, block in enumerate(blocks):
        place = f"{where}[{number}]"
        if _kind(block, place) != "tool_result":
            texts.append(_block_text(block, place))
            continue
        messages += _user_message(texts)
        messages.append(_tool_result(block, place))
        texts = []
    return messages + _user_message(texts) or [{"role": "user", "content": ""}]


def _user_message(texts: list[str]) -> list[dict[str, Any]]:
    return [{"role": "user", "content": "\n".join(texts)}] if texts else []


def _tool_result(block: Mapping[str, Any], where: str) -> dict[str, Any]:
    call_id = _string(block.get("tool_use_id"), f"{where}.tool_use_id")
    text = _text(block.get("content") or "", f"{where}.content")
    if block.get("is_error") is True:  # templates have no other way to say so
        text = f"Error: {text}"
    return {"role": "tool", "tool_call_id": call_id, "content": text}


def _assistant(blocks: list[Any], where: str) -> dict[str, Any]:
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[dict[str, Any]] = []
    for number, block in enumerate(blocks):
        place = f"{where}[{number}]"
        kind = _kind(block, place)
        if kind == "tool_use":
            calls.append(_tool_use(block, place))
        elif kind == "thinking":
            thoughts.append(_string(block.get("thinking"), f"{place}.thinking"))
        else:
            texts.append(_block_text(block, place))
    message: dict[str, Any] = {"role": "assistant", "content": "\n".join(texts)}
    if thoughts:
        message["reasoning_content"] = "\n".join(thoughts)
    return {**message, "tool_calls": calls} if calls else message


def _tool_use(block: Mapping[str, Any], where: str) -> dict[str, Any]:
    check_name(block.get("name"), f"{where}.name")
    arguments = block.get("input")
    if not isinstance(arguments, dict):
        raise InvalidRequestError(f"{where}.input must be an object", f"{where}.input")
    call_id = _string(block.get("id"), f"{where}.id")
    return {"id": call_id, "type": "function", "function": {"name": block["name"], "arguments": arguments}}


def _chat_tool(tool: Mapping[str, Any], where: str) -> dict[str, Any]:
    check_name(tool.get("name"), f"{where}.name")
    if not isinstance(tool.get("input_schema"), dict):
        raise InvalidRequestError(f"{where}.input_schema must be a JSON schema", f"{where}.input_schema")
    description = _string(tool.get("description") or "", f"{where}.description")
    function = {"name": tool["name"], "description": description, "parameters": tool["input_schema"]}
    return {"type": "function", "function": function}


def _runs_at_client(tool: Mapping[str, Any]) -> bool:
    return tool.get("type") in (None, "custom")


def _has_calls(message: Mapping[str, Any]) -> bool:
    content = message.get("content")
    return isinstance(content, list) and any(isinstance(b, dict) and b.get("type") == "tool_use" for b in content)


def _text(content: object, where: str) -> str:
    """A text, or the texts of its blocks, one to a line."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise InvalidRequestError(f"{where} must be a string or a list of text blocks", where)
    check_count(content, MAX_PARTS, where)
    return "\n".join(_block_text(block, f"{where}[{number}]") for number, block in enumerate(content))


def _block_text(block: Any, where: str) -> str:
    kind = _kind(block, where)
    if kind != "text":
        raise InvalidRequestError(f"{where}.type is {kind[:40]!r}, which this model cannot read here", f"{where}.type")
    return _string(block.get("text"), f"{where}.text")


def _kind(block: object, where: str) -> str:
    if not isinstance(block, dict) or not isinstance(block.get("type"), str):
        raise InvalidRequestError(f"{where} must be an object with a type", where)
    return str(block["type"])


def _string(value: object, where: str) -> str:
    if not isinstance(value, str):
        raise InvalidRequestError(f"{where} must be a string", where)
    return value

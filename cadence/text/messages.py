"""Chat messages: checked, completed and put into the form a template expects. The caller's objects are not touched."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from cadence.core.errors import InvalidRequestError

# What may stand in for content in an assistant's message.
_INSTEAD_OF_CONTENT = ("tool_calls", "function_call", "reasoning_content", "reasoning", "refusal")
# type of a part -> where its text is
_TEXT_PARTS = {
    "text": "text",
    "input_text": "text",
    "output_text": "text",
    "refusal": "refusal",
    "thinking": "thinking",
}

MEDIA = ("image", "video")  # types of parts that stand for what a message shows; what that is lies elsewhere

Message = dict[str, Any]


def check_messages(messages: object, media: Collection[str] = ()) -> list[Message]:
    """A copy in which content is a str, a list of parts or None, and tool-call arguments are objects. media: the types
    of parts that may stand beside texts"""
    if not isinstance(messages, Sequence) or isinstance(messages, str | bytes):
        raise InvalidRequestError("messages must be a list of messages", field="messages")
    if not messages:
        raise InvalidRequestError("messages must not be empty", field="messages")
    return [_check_message(message, f"messages[{i}]", media) for i, message in enumerate(messages)]


def check_tools(tools: object) -> list[dict[str, Any]] | None:
    """No tools at all are None: templates ask whether there are any in either way."""
    if tools is None:
        return None
    if not isinstance(tools, Sequence) or isinstance(tools, str | bytes):
        raise InvalidRequestError("tools must be a list of tool descriptions", field="tools")
    for i, tool in enumerate(tools):
        if not isinstance(tool, Mapping):
            raise InvalidRequestError(f"tools[{i}] must be an object with a JSON schema", field=f"tools[{i}]")
    return [dict(tool) for tool in tools] or None


def flatten_content(messages: list[Message], placeholders: Mapping[str, str] = MappingProxyType({})) -> None:
    """For templates that write content as a string: what stands for the media, and then the texts, one to a line."""
    for message in messages:
        if isinstance(message["content"], list):
            shown = [placeholders[part["type"]] for part in message["content"] if part["type"] in MEDIA]
            texts = [part["text"] for part in message["content"] if part["type"] not in MEDIA]
            message["content"] = "\n".join([*shown, *texts])


def fill_content(messages: list[Message]) -> None:
    """No content, as beside tool calls or thoughts, is an empty text: most templates would add to it."""
    for message in messages:
        if message["content"] is None:
            message["content"] = ""


def wrap_content(messages: list[Message]) -> None:
    """For templates that know content only as a list of parts."""
    for message in messages:
        if isinstance(message["content"], str):
            message["content"] = [{"type": "text", "text": message["content"]}]


def _check_message(message: object, where: str, media: Collection[str]) -> Message:
    if not isinstance(message, Mapping):
        raise InvalidRequestError(f"{where} must be an object with role and content", field=where)
    copy: Message = {str(key): value for key, value in message.items()}
    role = copy.get("role")
    if not isinstance(role, str) or not role:
        raise InvalidRequestError(f"{where}.role must be a non-empty string", field=f"{where}.role")
    copy["content"] = _check_content(copy, where, media)
    if thoughts := copy.get("reasoning") or copy.get("reasoning_content"):  # templates know one name or the other
        copy["reasoning"] = copy["reasoning_content"] = thoughts
    if copy.get("tool_calls") is None:
        copy.pop("tool_calls", None)
    else:
        copy["tool_calls"] = _check_tool_calls(copy["tool_calls"], f"{where}.tool_calls")
    return copy


def _check_content(message: Message, where: str, media: Collection[str]) -> str | list[dict[str, Any]] | None:
    content = message.get("content")
    where = f"{where}.content"
    if isinstance(content, str):
        return content
    if content is None:
        if "content" not in message and not any(message.get(name) for name in _INSTEAD_OF_CONTENT):
            raise InvalidRequestError(f"{where} is missing, and the message has no tool_calls either", field=where)
        refusal = message.get("refusal")
        return refusal if isinstance(refusal, str) else None
    if not isinstance(content, Sequence) or isinstance(content, bytes):
        raise InvalidRequestError(f"{where} must be a string or a list of parts", field=where)
    return [_check_part(part, f"{where}[{i}]", media) for i, part in enumerate(content)]


def _check_part(part: object, where: str, media: Collection[str]) -> dict[str, Any]:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    if not isinstance(part, Mapping):
        raise InvalidRequestError(f"{where} must be an object with a type", field=where)
    kind = part.get("type", "text" if "text" in part else None)
    if isinstance(kind, str) and kind in media:
        return {"type": kind}
    if not isinstance(kind, str) or kind not in _TEXT_PARTS:
        shown = repr(kind[:40]) if isinstance(kind, str) else "no string"
        known = " and ".join(("text", *sorted(media)))
        raise InvalidRequestError(
            f"{where}.type is {shown}: only {known} parts are supported by this model", field=f"{where}.type"
        )
    text = part.get(_TEXT_PARTS[kind])
    if not isinstance(text, str):
        raise InvalidRequestError(f"{where}.{_TEXT_PARTS[kind]} must be a string", field=f"{where}.{_TEXT_PARTS[kind]}")
    return {**part, "type": "text", "text": text}


def _check_tool_calls(calls: object, where: str) -> list[dict[str, Any]]:
    if not isinstance(calls, Sequence) or isinstance(calls, str | bytes):
        raise InvalidRequestError(f"{where} must be a list", field=where)
    return [_check_tool_call(call, f"{where}[{i}]") for i, call in enumerate(calls)]


def _check_tool_call(call: object, where: str) -> dict[str, Any]:
    if not isinstance(call, Mapping):
        raise InvalidRequestError(f"{where} must be an object", field=where)
    copy = dict(call)
    function = copy.get("function")
    if "function" in copy and not isinstance(function, Mapping):
        raise InvalidRequestError(f"{where}.function must be an object", field=f"{where}.function")
    if isinstance(function, Mapping):
        arguments = _parse_arguments(function.get("arguments"), f"{where}.function.arguments")
        copy["function"] = {**function, "arguments": arguments}
    elif "arguments" in copy:  # the flat form that some templates use
        copy["arguments"] = _parse_arguments(copy["arguments"], f"{where}.arguments")
    return copy


def _parse_arguments(arguments: object, where: str) -> dict[str, Any]:
    """Clients send arguments as a JSON string; templates expect the object."""
    if isinstance(arguments, Mapping):
        return dict(arguments)
    if arguments is None or arguments == "":
        return {}
    try:
        parsed = json.loads(arguments) if isinstance(arguments, str) else arguments
    except (ValueError, RecursionError) as error:
        raise InvalidRequestError(f"{where} is not valid JSON", field=where) from error
    if not isinstance(parsed, dict):
        raise InvalidRequestError(f"{where} must be a JSON object", field=where)
    return parsed

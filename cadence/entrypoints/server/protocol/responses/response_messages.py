"""How the items of /v1/responses become the messages of a chat."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from cadence.core.errors import InvalidRequestError
from cadence.core.inputs.media import IMAGE
from cadence.entrypoints.server.http.ignored import Ignored
from cadence.entrypoints.server.protocol.chat import check_name
from cadence.entrypoints.server.protocol.common import MAX_PARTS, check_count, string_of
from cadence.entrypoints.server.protocol.json_text import decode_arguments
from cadence.entrypoints.server.protocol.responses.response_tools import (
    custom_arguments,
    flat_name,
)
from cadence.media.chat_parts import medium_part
from cadence.media.parts import MediaPart

ROLES = {"user": "user", "assistant": "assistant", "system": "system", "developer": "system"}
TEXT_PARTS = {  # type -> the field that holds its text
    "input_text": "text", "output_text": "text", "text": "text", "refusal": "refusal", "summary_text": "text",
    "reasoning_text": "text",
}  # fmt: skip
INPUT_IMAGE = "input_image"
MORE_TOOLS = "additional_tools"
SHELL = "local_shell"  # the function that stands for it
# What other servers did for a model. These items hold nothing that this one could read.
FOREIGN_ITEMS = frozenset((
    "web_search_call", "file_search_call", "code_interpreter_call", "computer_call", "image_generation_call",
    "mcp_list_tools", "mcp_approval_request", "mcp_approval_response", "tool_search_call", "tool_search_output",
    "compaction", "compaction_summary", "compaction_trigger", "context_compaction",
))  # fmt: skip

_FOREIGN = "it tells of something that this server does not do"
_SEALED = "cadence-reasoning:"  # begins what is ours


def to_messages(
    items: Sequence[Mapping[str, Any]], num_stored: int, instructions: str | None, ignored: Ignored
) -> list[dict[str, Any]]:
    """Items, the first `num_stored` of which are those of earlier turns. Neighbouring calls are one message, thoughts
    belong to what the assistant says next, and there is one system message, at the start, where the items begin with
    several."""
    reader = _ItemReader(ignored)
    if instructions:
        reader.add({"role": "system", "content": instructions})
    for number, item in enumerate(items):
        reader.read(item, f"input[{number - num_stored}]" if number >= num_stored else "previous_response_id")
    return reader.finish()


def open_kind(items: Sequence[Mapping[str, Any]]) -> str:
    """What the last item is where the assistant did not end it, so that the model goes on with it: message, reasoning;
    "" = it has ended."""
    last = items[-1] if items else {}
    kind = last.get("type") or "message"
    own = kind == "reasoning" or (kind == "message" and last.get("role") == "assistant")
    return str(kind) if own and last.get("status") in ("in_progress", "incomplete") else ""


def seal_reasoning(text: str) -> str:
    """For `encrypted_content`. It is no secret, as the same text is in `content`: clients that keep only this field
    give the reasoning back with it."""
    return _SEALED + base64.b64encode(text.encode()).decode()


def unseal_reasoning(sealed: str) -> str | None:
    """None where it is not ours."""
    if not sealed.startswith(_SEALED):
        return None
    try:
        return base64.b64decode(sealed.removeprefix(_SEALED), validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return None


class _ItemReader:
    def __init__(self, ignored: Ignored) -> None:
        self.messages: list[dict[str, Any]] = []
        self._ignored = ignored
        self._systems: list[str] = []  # more for the system message at the start
        self._thoughts: list[str] = []
        self._kinds: dict[str, Callable[[Mapping[str, Any], str], None]] = {
            "message": self._message,
            "function_call": self._function_call,
            "function_call_output": self._output,
            "custom_tool_call": self._custom_call,
            "custom_tool_call_output": self._output,
            "local_shell_call": self._shell_call,
            "local_shell_call_output": self._output,
            "reasoning": self._reasoning,
            "agent_message": self._agent_message,
            MORE_TOOLS: lambda item, where: None,  # read with the tools
        }

    def read(self, item: Mapping[str, Any], where: str) -> None:
        kind = item.get("type") or "message"
        if isinstance(kind, str) and kind in FOREIGN_ITEMS:
            self._ignored.add(where, _FOREIGN)
            return
        if not isinstance(kind, str) or kind not in self._kinds:
            known = ", ".join(self._kinds)
            raise InvalidRequestError(f"{where}.type is {str(kind)[:40]!r}: it must be one of {known}", f"{where}.type")
        self._kinds[kind](item, where)

    def add(self, message: dict[str, Any]) -> None:
        last = self.messages[-1] if len(self.messages) == 1 else {}
        if message["role"] == "system" == last.get("role"):
            self._systems.append(message["content"])
            return
        thoughts = "".join(self._thoughts)
        self._thoughts = []
        if thoughts and message["role"] != "assistant":
            self.messages.append({"role": "assistant", "content": "", "reasoning_content": thoughts})
        elif thoughts:
            message["reasoning_content"] = thoughts
        self.messages.append(message)

    def finish(self) -> list[dict[str, Any]]:
        if "".join(self._thoughts):
            self.add({"role": "assistant", "content": ""})
        if self._systems:
            self.messages[0]["content"] = "\n\n".join([self.messages[0]["content"], *self._systems])
        return self.messages

    def _message(self, item: Mapping[str, Any], where: str) -> None:
        role = item.get("role")
        if not isinstance(role, str) or role not in ROLES:
            raise InvalidRequestError(f"{where}.role must be one of {', '.join(ROLES)}", f"{where}.role")
        content = item.get("content")
        read = content_parts if role == "user" else content_text
        self.add({"role": ROLES[role], "content": read(content, f"{where}.content")})

    def _agent_message(self, item: Mapping[str, Any], where: str) -> None:
        """What another agent of the client's says."""
        text = content_text(item.get("content"), f"{where}.content")
        author = string_of(item.get("author") or "", f"{where}.author")
        self.add({"role": "user", "content": f"{author}: {text}" if author else text})

    def _function_call(self, item: Mapping[str, Any], where: str) -> None:
        arguments = string_of(item.get("arguments"), f"{where}.arguments")
        _check_arguments(arguments, f"{where}.arguments")
        self._call(item, where, arguments)

    def _custom_call(self, item: Mapping[str, Any], where: str) -> None:
        self._call(item, where, custom_arguments(string_of(item.get("input"), f"{where}.input")))

    def _shell_call(self, item: Mapping[str, Any], where: str) -> None:
        action = item.get("action")
        if not isinstance(action, dict):
            raise InvalidRequestError(f"{where}.action must be an object", f"{where}.action")
        kept = {key: value for key, value in action.items() if key != "type" and value is not None}
        call = {"call_id": item.get("call_id") or item.get("id"), "name": SHELL}
        self._call(call, where, msgspec.json.encode(kept).decode())

    def _call(self, item: Mapping[str, Any], where: str, arguments: str) -> None:
        check_name(item.get("name"), f"{where}.name")
        namespace = string_of(item.get("namespace") or "", f"{where}.namespace")
        call_id = string_of(item.get("call_id"), f"{where}.call_id")
        function = {"name": flat_name(item["name"], namespace), "arguments": arguments}
        if not self.messages or self.messages[-1]["role"] != "assistant":
            self.add({"role": "assistant", "content": "", "tool_calls": []})
        calls = self.messages[-1].setdefault("tool_calls", [])
        calls.append({"id": call_id, "type": "function", "function": function})

    def _output(self, item: Mapping[str, Any], where: str) -> None:
        call_id = item.get("call_id")
        if item.get("type") == "local_shell_call_output":
            call_id = call_id or item.get("id")
        content = content_parts(item.get("output"), f"{where}.output")
        self.add({"role": "tool", "tool_call_id": string_of(call_id, f"{where}.call_id"), "content": content})

    def _reasoning(self, item: Mapping[str, Any], where: str) -> None:
        """The text itself, or what it was sealed into, or else its summary."""
        sealed = item.get("encrypted_content")
        thoughts = _texts(item.get("content"), f"{where}.content")
        if not thoughts and isinstance(sealed, str) and sealed:
            text = unseal_reasoning(sealed)
            if text is None:
                self._ignored.add(f"{where}.encrypted_content", "another server wrote it")
            thoughts = [text] if text else []
        self._thoughts += thoughts or _texts(item.get("summary"), f"{where}.summary")


def content_text(content: object, where: str) -> str:
    """A text, or the texts of its parts, one to a line."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise InvalidRequestError(f"{where} must be a string or a list of parts", where)
    check_count(content, MAX_PARTS, where)
    return "\n".join(_part_text(part, f"{where}[{number}]") for number, part in enumerate(content))


def content_parts(content: object, where: str) -> str | list[dict[str, Any]]:
    """As `content_text`; with pictures, a list of parts."""
    if not isinstance(content, list) or not any(map(_is_image, content)):
        return content_text(content, where)
    check_count(content, MAX_PARTS, where)
    return [_part(part, f"{where}[{number}]") for number, part in enumerate(content)]


def _part(part: object, where: str) -> dict[str, Any]:
    if not isinstance(part, dict) or not _is_image(part):
        return {"type": "text", "text": _part_text(part, where)}
    if part.get("image_url") is None:
        message = f"{where} has no image_url: this server keeps no files"
        raise InvalidRequestError(message, f"{where}.file_id" if part.get("file_id") else where)
    url = string_of(part["image_url"], f"{where}.image_url")
    return medium_part(MediaPart(IMAGE, f"{where}.image_url", url), where, INPUT_IMAGE)


def _is_image(part: object) -> bool:
    return isinstance(part, dict) and part.get("type") == INPUT_IMAGE


def _part_text(part: object, where: str) -> str:
    if not isinstance(part, dict):
        raise InvalidRequestError(f"{where} must be an object with a type", where)
    kind = part.get("type")
    if not isinstance(kind, str) or kind not in TEXT_PARTS:
        raise InvalidRequestError(f"{where}.type is {str(kind)[:40]!r}: this model reads text only", f"{where}.type")
    return string_of(part.get(TEXT_PARTS[kind]), f"{where}.{TEXT_PARTS[kind]}")


def _texts(parts: object, where: str) -> list[str]:
    if not isinstance(parts or [], list):
        raise InvalidRequestError(f"{where} must be a list of parts", where)
    check_count(parts, MAX_PARTS, where)
    texts = [part.get("text") for part in parts if isinstance(part, dict)] if isinstance(parts, list) else []
    return [text for text in texts if isinstance(text, str)]


def _check_arguments(arguments: str, where: str) -> None:
    if not isinstance(decode_arguments(arguments or "{}", where), dict):
        raise InvalidRequestError(f"{where} must be a JSON object", where)

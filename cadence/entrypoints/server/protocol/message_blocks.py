"""Anthropic's content blocks as messages of a chat. What cannot be read is refused, what says nothing to this model is
left out and named."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cadence.core.errors import InvalidRequestError
from cadence.core.inputs.media import IMAGE
from cadence.entrypoints.server.http.ignored import Ignored
from cadence.entrypoints.server.protocol.chat import check_name
from cadence.entrypoints.server.protocol.common import MAX_PARTS, check_count, string_of
from cadence.media.chat_parts import medium_part
from cadence.media.parts import MediaPart

Block = Mapping[str, Any]
Shown = list[str | dict[str, Any]]  # what a user or a tool shows: texts, and parts of messages that are pictures

_ENCRYPTED = "only the one who wrote these thoughts can read them"
_SERVER_TOOLS = "it is of tools that ran elsewhere"
# Claude Code's, in the system prompt: it differs from request to request, so that no prefix would be in the cache.
_BILLING = "x-anthropic-billing-header:"


def chat_messages(message: Mapping[str, Any], where: str, ignored: Ignored) -> list[dict[str, Any]]:
    role, content = message.get("role"), message.get("content")
    if role not in ("user", "assistant", "system"):
        raise InvalidRequestError(f"{where}.role must be user or assistant", f"{where}.role")
    where = f"{where}.content"
    if role == "system":
        text = system_text(content, where, ignored)
        return [{"role": role, "content": text}] if text or not content else []
    if isinstance(content, str):
        return [{"role": role, "content": content}]
    if not isinstance(content, list):
        raise InvalidRequestError(f"{where} must be a string or a list of blocks", where)
    check_count(content, MAX_PARTS, where)
    if role == "assistant":
        return [_assistant(content, where, ignored)]
    return _user(content, where, ignored)


def system_text(content: object, where: str, ignored: Ignored) -> str:
    """Its blocks as they follow one another, without what is said of accounts."""
    if isinstance(content, list):
        check_count(content, MAX_PARTS, where)
        kept = [block for block in content if not (isinstance(block, dict) and _is_billing(block.get("text")))]
    else:
        kept = "" if _is_billing(content) else content
    if kept != content:
        ignored.add(where, "this server keeps no accounts")
    if not isinstance(kept, list):
        return text_of(kept, where, ignored)
    return "".join(_text(block, f"{where}[{number}]", ignored) or "" for number, block in enumerate(kept))


def _is_billing(text: object) -> bool:
    return isinstance(text, str) and text.startswith(_BILLING)


def text_of(content: object, where: str, ignored: Ignored) -> str:
    """A text, or the texts of its blocks, one to a line."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise InvalidRequestError(f"{where} must be a string or a list of text blocks", where)
    check_count(content, MAX_PARTS, where)
    texts = [_text(block, f"{where}[{number}]", ignored) for number, block in enumerate(content)]
    return "\n".join(text for text in texts if text is not None)


def has_calls(message: Mapping[str, Any]) -> bool:
    content = message.get("content")
    return isinstance(content, list) and any(isinstance(b, dict) and b.get("type") == "tool_use" for b in content)


def _user(blocks: list[Any], where: str, ignored: Ignored) -> list[dict[str, Any]]:
    """Results of tools are messages of their own."""
    messages: list[dict[str, Any]] = []
    shown: Shown = []  # of the blocks since the last result
    for number, block in enumerate(blocks):
        place = f"{where}[{number}]"
        if _kind(block, place) == "tool_result":
            messages += _user_message(shown)
            messages.append(_tool_result(block, place, ignored))
            shown = []
        else:
            shown += _shown(block, place, ignored)
    return messages + _user_message(shown) or [{"role": "user", "content": ""}]


def _user_message(shown: Shown) -> list[dict[str, Any]]:
    return [{"role": "user", "content": _content(shown)}] if shown else []


def _content(shown: Shown) -> str | list[dict[str, Any]]:
    """Texts alone are one, each a line of it."""
    texts = [one for one in shown if isinstance(one, str)]
    if len(texts) == len(shown):
        return "\n".join(texts)
    return [{"type": "text", "text": one} if isinstance(one, str) else one for one in shown]


def _shown(block: Any, where: str, ignored: Ignored) -> Shown:
    if _kind(block, where) == "image":
        return [_image(block, where)]
    text = _text(block, where, ignored)
    return [] if text is None else [text]


def _image(block: Block, where: str) -> dict[str, Any]:
    place, source, where = where, block.get("source"), f"{where}.source"
    kind = source.get("type") if isinstance(source, dict) else None
    if isinstance(source, dict) and kind == "url":
        medium = MediaPart(IMAGE, f"{where}.url", string_of(source.get("url"), f"{where}.url"))
        return medium_part(medium, place, IMAGE)
    if not isinstance(source, dict) or kind != "base64":
        raise InvalidRequestError(f"{where}.type must be base64 or url: this server keeps no files", f"{where}.type")
    media_type = string_of(source.get("media_type"), f"{where}.media_type")
    data = string_of(source.get("data"), f"{where}.data")
    if not media_type.startswith("image/") or "," in media_type or ";" in media_type:
        message = f"{where}.media_type must be that of a picture, such as image/png"
        raise InvalidRequestError(message, f"{where}.media_type")
    return medium_part(MediaPart(IMAGE, f"{where}.data", f"data:{media_type};base64,{data}"), place, IMAGE)


def _tool_result(block: Block, where: str, ignored: Ignored) -> dict[str, Any]:
    call_id = string_of(block.get("tool_use_id"), f"{where}.tool_use_id")
    content, where = block.get("content") or "", f"{where}.content"
    shown: Shown
    if isinstance(content, list):
        check_count(content, MAX_PARTS, where)
        shown = [one for n, part in enumerate(content) for one in _shown(part, f"{where}[{n}]", ignored)]
    else:
        shown = [text_of(content, where, ignored)]
    if block.get("is_error") is True:  # templates have no other way to say so
        shown = _as_error(shown)
    return {"role": "tool", "tool_call_id": call_id, "content": _content(shown)}


def _as_error(shown: Shown) -> Shown:
    if shown and isinstance(shown[0], str):
        return [f"Error: {shown[0]}", *shown[1:]]
    return ["Error: ", *shown]


def _assistant(blocks: list[Any], where: str, ignored: Ignored) -> dict[str, Any]:
    """What servers of Anthropic's have added of their own means nothing here."""
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[dict[str, Any]] = []
    for number, block in enumerate(blocks):
        place = f"{where}[{number}]"
        kind = _kind(block, place)
        if kind == "tool_use":
            calls.append(_tool_use(block, place))
        elif kind == "thinking":
            thoughts.append(string_of(block.get("thinking"), f"{place}.thinking"))
        elif kind == "text":
            texts.append(string_of(block.get("text"), f"{place}.text"))
        else:
            ignored.add(place, _ENCRYPTED if kind == "redacted_thinking" else _SERVER_TOOLS)
    message: dict[str, Any] = {"role": "assistant", "content": "\n".join(texts)}
    if thoughts:
        message["reasoning_content"] = "".join(thoughts)
    return {**message, "tool_calls": calls} if calls else message


def _tool_use(block: Block, where: str) -> dict[str, Any]:
    check_name(block.get("name"), f"{where}.name")
    arguments = block.get("input")
    if not isinstance(arguments, dict):
        raise InvalidRequestError(f"{where}.input must be an object", f"{where}.input")
    call_id = string_of(block.get("id"), f"{where}.id")
    return {"id": call_id, "type": "function", "function": {"name": block["name"], "arguments": arguments}}


def _text(block: Any, where: str, ignored: Ignored) -> str | None:
    """Of a block that a user or a tool wrote; None where it was left out."""
    kind = _kind(block, where)
    if kind == "text":
        return string_of(block.get("text"), f"{where}.text")
    if kind == "document":
        return _document(block, where, ignored)
    if kind == "search_result":
        found = text_of(block.get("content"), f"{where}.content", ignored)
        return f"{string_of(block.get('title', ''), f'{where}.title')}\n{found}"
    if kind == "tool_reference":
        ignored.add(where, "tools are known from the start")
        return None
    raise InvalidRequestError(f"{where}.type is {kind[:40]!r}, which this model cannot read here", f"{where}.type")


def _document(block: Block, where: str, ignored: Ignored) -> str:
    """Its text, where it is one."""
    source = block.get("source")
    kind = source.get("type") if isinstance(source, dict) else None
    if not isinstance(source, dict) or kind not in ("text", "content"):
        field = f"{where}.source.type"
        raise InvalidRequestError(f"{field} must be text or content: this model reads no files", field)
    if kind == "text":
        return string_of(source.get("data"), f"{where}.source.data")
    return text_of(source.get("content"), f"{where}.source.content", ignored)


def _kind(block: object, where: str) -> str:
    if not isinstance(block, dict) or not isinstance(block.get("type"), str):
        raise InvalidRequestError(f"{where} must be an object with a type", where)
    return str(block["type"])

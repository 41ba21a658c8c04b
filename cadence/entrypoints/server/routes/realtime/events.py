"""Events of clients, checked, and what the server says of a session and a response."""

from __future__ import annotations

import secrets
from typing import Any, Literal

import msgspec

from cadence.core.errors import InvalidRequestError
from cadence.entrypoints.server.http.errors import reply_for

TEXT_PARTS = ("input_text", "output_text", "text")
ROLES = ("system", "user", "assistant")
MOST_NAME = 512  # characters of an id that a client chose


class Settings(msgspec.Struct, forbid_unknown_fields=False):
    """Of `session.update`, or of one response. UNSET = as it was."""

    instructions: str | msgspec.UnsetType = msgspec.UNSET
    temperature: float | msgspec.UnsetType | None = msgspec.UNSET
    max_output_tokens: int | Literal["inf"] | msgspec.UnsetType | None = msgspec.UNSET
    model: str | msgspec.UnsetType = msgspec.UNSET

    def changed(self, later: Settings) -> Settings:
        given = {name: value for name in self.__struct_fields__ if (value := getattr(later, name)) is not msgspec.UNSET}
        return msgspec.structs.replace(self, **given)

    def shown(self) -> dict[str, Any]:
        told = {name: getattr(self, name) for name in self.__struct_fields__}
        return {name: value for name, value in told.items() if value is not msgspec.UNSET}

    @property
    def max_tokens(self) -> int | None:
        limit = self.max_output_tokens
        return limit if isinstance(limit, int) else None


class ClientEvent(msgspec.Struct):
    """Any event of a client; which fields it must have is the business of its handler."""

    type: str
    event_id: str | None = None
    session: Settings | None = None
    response: Settings | None = None
    response_id: str | None = None
    item: dict[str, Any] | None = None
    item_id: str | None = None
    text: str | None = None
    token_ids: list[int] | None = None


def read_event(content: bytes) -> ClientEvent:
    try:
        return msgspec.json.decode(content, type=ClientEvent)
    except msgspec.MsgspecError as error:
        raise InvalidRequestError(f"the event cannot be read: {str(error)[:300]}", "event") from None


def new_id(kind: str) -> str:
    return f"{kind}_{secrets.token_hex(12)}"


def message_item(given: dict[str, Any] | None) -> dict[str, Any]:
    """A message of a conversation, as it is kept and shown."""
    given = given or {}
    if given.get("type", "message") != "message":
        raise InvalidRequestError(f"item.type must be message; got {str(given.get('type'))[:80]!r}", "item.type")
    role = given.get("role", "user")
    if role not in ROLES:
        raise InvalidRequestError(f"item.role must be one of {', '.join(ROLES)}", "item.role")
    name = given.get("id") or new_id("item")
    if not isinstance(name, str) or len(name) > MOST_NAME:
        raise InvalidRequestError(f"item.id must be a text of at most {MOST_NAME} characters", "item.id")
    parts = given.get("content")
    if not isinstance(parts, list) or not parts:
        raise InvalidRequestError("item.content must be a list of at least one part", "item.content")
    kind = "output_text" if role == "assistant" else "input_text"
    content = [{"type": kind, "text": _text_of(part)} for part in parts]
    return {"id": name, "object": "realtime.item", "type": "message", "status": "completed", "role": role,
            "content": content}  # fmt: skip


def _text_of(part: Any) -> str:
    if not isinstance(part, dict) or part.get("type") not in TEXT_PARTS or not isinstance(part.get("text"), str):
        raise InvalidRequestError("item.content: parts must be {type: input_text, text: …}", "item.content")
    return str(part["text"])


def text_of_item(item: dict[str, Any]) -> str:
    return "".join(part["text"] for part in item["content"])


def error_event(error: Exception, event_id: str | None) -> dict[str, Any]:
    """event_id: of the client's event that it is about"""
    told = reply_for(error).body()["error"]
    code = told["reason"] or told["type"]
    details = {"type": told["type"], "code": code, "message": told["message"], "param": told["param"]}
    return {"type": "error", "error": {**details, "event_id": event_id}}

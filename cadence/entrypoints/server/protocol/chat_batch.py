"""The body of /v1/chat/completions/batch: that of a chat, with a list of conversations for `messages`."""

from __future__ import annotations

from typing import Any

from cadence.core.errors import InvalidRequestError
from cadence.entrypoints.server.http.ignored import Ignored
from cadence.entrypoints.server.protocol.body import body_schema, validate_body
from cadence.entrypoints.server.protocol.chat import MAX_MESSAGES, ChatCompletionBody, check_message
from cadence.entrypoints.server.protocol.common import check_count
from cadence.entrypoints.server.protocol.json_text import decode_json

MAX_CONVERSATIONS = 1024


def decode_batch(raw: bytes) -> dict[str, Any]:
    """With a list of conversations that is not too long; nothing else of it is checked."""
    content = decode_json(raw)
    conversations = content.get("messages") if isinstance(content, dict) else None
    if not isinstance(conversations, list) or not conversations:
        raise InvalidRequestError("messages must be a list of conversations, each a list of messages", "messages")
    check_count(conversations, MAX_CONVERSATIONS, "messages")
    return content


def parse_batch(content: dict[str, Any], ignored: Ignored) -> list[ChatCompletionBody]:
    """A body for each conversation; all but the messages is shared."""
    conversations = content["messages"]
    _check_conversations(conversations)
    first = validate_body(ChatCompletionBody, {**content, "messages": conversations[0]}, ignored)
    first.check()
    for name, wrong in (("stream", first.stream), ("tools", first.tools), ("n", (first.n or 1) > 1)):
        if wrong:
            raise InvalidRequestError(f"{name} is not supported: a batch has one whole answer of text for each", name)
    return [first, *(first.model_copy(update={"messages": one}) for one in conversations[1:])]


def batch_schema() -> dict[str, Any]:
    """The OpenAPI entry."""
    entry = body_schema(ChatCompletionBody)
    fields = entry["requestBody"]["content"]["application/json"]["schema"]["properties"]
    fields["messages"] = {"type": "array", "items": fields["messages"], "minItems": 1, "maxItems": MAX_CONVERSATIONS}
    return entry


def _check_conversations(conversations: list[Any]) -> None:
    for number, conversation in enumerate(conversations):
        where = f"messages[{number}]"
        if not isinstance(conversation, list) or not conversation:
            raise InvalidRequestError(f"{where} must be a list of messages", where)
        check_count(conversation, MAX_MESSAGES, where)
        for place, message in enumerate(conversation):
            if not isinstance(message, dict):
                raise InvalidRequestError(f"{where}[{place}] must be a message", f"{where}[{place}]")
            check_message(message, f"{where}[{place}]")

"""From chat messages to a prompt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cadence.core.errors import ConfigError, InvalidRequestError
from cadence.engine.text.prompts import TokensPrompt
from cadence.text.chat_template import ChatRequest
from cadence.text.chats import Chats


def split_conversations(messages: Any) -> list[Sequence[Mapping[str, Any]]]:
    """One conversation (a list of messages) or many (a list of those)."""
    if not isinstance(messages, Sequence) or isinstance(messages, str) or not messages:
        raise InvalidRequestError("messages must be a list of at least one message", "messages")
    many = isinstance(messages[0], Sequence) and not isinstance(messages[0], str)
    return list(messages) if many else [messages]


def chat_prompt(chats: Chats, chat: ChatRequest, template: str) -> TokensPrompt:
    """Templates write the special tokens themselves, so none are added here."""
    rendered = chats.render(chat, template)
    return {"prompt": chats.text(rendered), "prompt_token_ids": chats.encode(rendered, add_special_tokens=False)}


def read_template(source: str) -> str:
    """A template as given: itself, or the path of a file that holds it. A path has no braces and no line breaks."""
    if not source or "{" in source or "\n" in source or not (source.endswith(".jinja") or "/" in source):
        return source
    try:
        return Path(source).expanduser().read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"chat_template {source} cannot be read: {error.strerror}", "chat_template") from None

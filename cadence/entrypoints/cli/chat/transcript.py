"""A conversation as a file: Markdown to read, JSON to send again."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cadence.core.errors import InvalidRequestError
from cadence.entrypoints.cli.chat.attached import text_of

MARKDOWN = (".md", ".markdown", ".txt")


def save(path: Path, messages: Sequence[Mapping[str, Any]], model: str) -> None:
    """The format follows the file's ending. Raises InvalidRequestError when it cannot be written."""
    suffix = path.suffix.lower()
    if suffix not in (*MARKDOWN, ".json"):
        raise InvalidRequestError(f"{path} ends neither in .md (Markdown) nor in .json", "path")
    text = to_json(messages, model) if suffix == ".json" else to_markdown(messages, model)
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InvalidRequestError(f"cannot write {path}: {error.strerror or error}", "path") from None


def to_json(messages: Sequence[Mapping[str, Any]], model: str) -> str:
    """A body for /v1/chat/completions."""
    return json.dumps({"model": model, "messages": list(messages)}, ensure_ascii=False, indent=2) + "\n"


def to_markdown(messages: Sequence[Mapping[str, Any]], model: str) -> str:
    names = {"system": "System", "user": "You", "assistant": model}
    parts = [f"# A conversation with {model}"]
    parts += [f"## {names[message['role']]}\n\n{text_of(message['content']).strip()}" for message in messages]
    return "\n\n".join(parts) + "\n"

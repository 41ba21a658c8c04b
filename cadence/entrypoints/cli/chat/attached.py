"""Pictures that go with the next question of a chat."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

from cadence.core.errors import InvalidRequestError

Content = str | list[dict[str, Any]]  # of a message


def image_part(path: Path) -> dict[str, Any]:
    """A file as a part of a message, whole, for a model here or elsewhere."""
    from cadence.core.inputs.media import IMAGE  # numpy is loaded by those who show pictures alone
    from cadence.media.as_media import read_file
    from cadence.media.header import FORMATS, format_of
    from cadence.media.limits import DEFAULT_LIMITS

    data = read_file(path, IMAGE, "/image", DEFAULT_LIMITS)
    name = format_of(data[:16]).lower()
    if not name:
        raise InvalidRequestError(f"{path} is no picture of a format that is read here: {', '.join(FORMATS)}", "path")
    return {"type": "image_url", "image_url": {"url": f"data:image/{name};base64,{base64.b64encode(data).decode()}"}}


def question(parts: list[dict[str, Any]], text: str) -> Content:
    return [*parts, {"type": "text", "text": text}] if parts else text


def text_of(content: Content) -> str:
    """Of a message, for people to read."""
    if isinstance(content, str):
        return content
    return "\n\n".join(part.get("text", "(a picture)") for part in content)

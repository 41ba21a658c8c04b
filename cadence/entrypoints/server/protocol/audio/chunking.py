"""`chunking_strategy`: long silences are not heard. Clients give it as "auto", as JSON, or field by field."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from cadence.audio.activity import DEFAULT_ACTIVITY, ActivityOptions
from cadence.entrypoints.server.protocol.body import BodyPart

_NAME = "chunking_strategy"


class ServerVad(BodyPart):
    """OpenAI's fields. Where one is missing, our own way of telling speech from silence has its say."""

    type: Literal["auto", "server_vad"]
    threshold: float | None = Field(default=None, ge=0.0, le=1.0)  # how loud speech is; 0.5 = as it is without
    prefix_padding_ms: int | None = Field(default=None, ge=0, le=10_000)  # kept before speech, and after it
    silence_duration_ms: int | None = Field(default=None, ge=0, le=3_600_000)  # a shorter silence is heard

    def activity(self) -> ActivityOptions:
        plain, given = DEFAULT_ACTIVITY, dict[str, float]()
        if self.threshold is not None:
            given["above_noise_db"] = 2 * self.threshold * plain.above_noise_db
        if self.prefix_padding_ms is not None:
            given["padding_seconds"] = self.prefix_padding_ms / 1000
        if self.silence_duration_ms is not None:
            given["min_silence_seconds"] = self.silence_duration_ms / 1000
        return replace(plain, **given)


def _read(value: Any) -> Any:
    """A form's values are texts."""
    if not isinstance(value, str):
        return value
    if value in ("auto", "server_vad"):
        return {"type": value}
    try:
        found = json.loads(value)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise ValueError('give auto, or {"type": "server_vad"}, which may have a threshold from 0 to 1')
    return found


Chunking = Annotated[ServerVad, BeforeValidator(_read)]


def joined_fields(fields: Iterable[tuple[str, str]]) -> list[tuple[str, Any]]:
    """chunking_strategy[type]=server_vad, as OpenAI's clients write it, and further ones like it, become one field."""
    others, found = list[tuple[str, Any]](), dict[str, str]()
    for name, value in fields:
        if name.startswith(f"{_NAME}[") and name.endswith("]"):
            found[name[len(_NAME) + 1 : -1]] = value
        else:
            others.append((name, value))
    return [*others, (_NAME, found)] if found else others

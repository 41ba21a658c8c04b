"""The media of conversations that a program holds: read at once, as the program waits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

from cadence.config.media_intake import MediaIntake
from cadence.engine.text.prompts import TokensPrompt
from cadence.entrypoints.media.pending import beside
from cadence.media.chat_parts import split_media
from cadence.media.fetch.reader import MediaData, open_reader
from cadence.text.chat_template import ChatRequest

MediaFields = Mapping[str, Any]  # of a prompt


class OfflineMedia:
    def __init__(self, intake: MediaIntake, placeholders: Mapping[str, str]) -> None:
        """placeholders: by the kinds of media that the model sees"""
        self._reader = open_reader(intake)
        self._placeholders = placeholders

    def split(self, chat: ChatRequest, processor: Mapping[str, Any]) -> tuple[ChatRequest, MediaFields]:
        """The chat, with `{"type": "image"}` where a picture was, and the pictures. processor: `mm_processor_kwargs`"""
        messages, parts = split_media(chat.messages, self._placeholders, values=True)
        if not parts:
            return chat, {}
        chat = replace(chat, messages=messages, placeholders=self._placeholders)
        return chat, media_fields(self._reader.read(parts), beside(parts, processor))


def media_fields(data: MediaData, others: Mapping[str, Any]) -> MediaFields:
    """others: as `beside` has it"""
    return {"multi_modal_data": data, **others} if data else {}


def with_media(prompt: TokensPrompt, fields: MediaFields) -> TokensPrompt:
    return cast(TokensPrompt, {**prompt, **fields})

"""The media of conversations that a program holds: read at once, as the program waits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import cast

from cadence.config.media_intake import MediaIntake
from cadence.engine.text.prompts import TokensPrompt
from cadence.media.chat_parts import split_media
from cadence.media.fetch.reader import MediaData, open_reader
from cadence.text.chat_template import ChatRequest


class OfflineMedia:
    def __init__(self, intake: MediaIntake, placeholders: Mapping[str, str]) -> None:
        """placeholders: by the kinds of media that the model sees"""
        self._reader = open_reader(intake)
        self._placeholders = placeholders

    def split(self, chat: ChatRequest) -> tuple[ChatRequest, MediaData]:
        """The chat, with `{"type": "image"}` where a picture was, and the pictures."""
        messages, parts = split_media(chat.messages, self._placeholders, values=True)
        if not parts:
            return chat, {}
        return replace(chat, messages=messages, placeholders=self._placeholders), self._reader.read(parts)


def with_media(prompt: TokensPrompt, data: MediaData) -> TokensPrompt:
    return cast(TokensPrompt, {**prompt, "multi_modal_data": data}) if data else prompt

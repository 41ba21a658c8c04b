"""A chat with a server: its answers continue the same history."""

from __future__ import annotations

from typing import Any

from cadence.core.errors import InvalidRequestError
from cadence.entrypoints.cli.chat.conversation import MAX_TOKENS, History, TurnError, Write
from cadence.entrypoints.cli.chat.settings import ChatSettings
from cadence.entrypoints.cli.remote.answers import Server
from cadence.entrypoints.cli.remote.client import RemoteError
from cadence.entrypoints.cli.shared.streaming import Answer


class RemoteConversation(History):
    """With a server. `fields` are sampling options as its API names them."""

    def __init__(self, server: Server, fields: dict[str, Any], system: str) -> None:
        super().__init__(ChatSettings(fields, MAX_TOKENS), system)
        self._server = server

    def answer(self, messages: list[dict[str, Any]], write: Write) -> Answer:
        try:
            return self._server.stream("/v1/chat/completions", {"messages": messages, **self.settings.given}, write)
        except RemoteError as error:
            if error.status == 400:
                raise InvalidRequestError(str(error)) from None
            raise TurnError(str(error)) from None

"""A chat's loop: read a message or a command, write the answer, say how fast it came."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from cadence.core.errors import InvalidRequestError
from cadence.entrypoints.cli.chat.conversation import TurnError
from cadence.entrypoints.cli.chat.screen import Screen
from cadence.entrypoints.cli.chat.slash_commands import run_command, words
from cadence.entrypoints.cli.shared.streaming import Answer

if TYPE_CHECKING:
    from cadence.entrypoints.cli.chat.conversation import History

Summary = Callable[[Answer], str]  # what is said after an answer; "" = nothing


class ChatLoop:
    def __init__(self, chat: History, screen: Screen, model: str, summary: Summary) -> None:
        self.chat = chat
        self.screen = screen
        self.model = model
        self.saved: set[Path] = set()  # files this chat has written, and may write again
        self.running = True
        self._summary = summary

    def run(self) -> None:
        """Turn after turn, until the user leaves. Ctrl-C, whenever it comes, is not a way to leave."""
        with self.screen.session(self.model, words(self.chat.settings.names)):
            while self.running:
                try:
                    self.turn()
                except KeyboardInterrupt:
                    self.screen.note("Ctrl-D or /exit leaves")
                except UnicodeDecodeError:
                    self.screen.note("that was not valid UTF-8")

    def turn(self) -> None:
        try:
            message = self.screen.read()
        except EOFError:
            self.running = False
            return
        text = message.strip()
        if message.startswith("/"):
            run_command(self, text)
        elif text:
            self.answer(lambda write: self.chat.ask(text, write))

    def answer(self, ask: Callable[[Callable[[str], None]], Answer]) -> None:
        try:
            result = ask(self.screen.write)
        except InvalidRequestError as error:
            self.screen.note(f"{error} (/reset starts a new conversation)")
            return
        except TurnError as error:
            self.screen.note(str(error))
            return
        self.screen.end_answer()
        if summary := self._summary(result):
            self.screen.note(summary)
        elif result.finish_reason == "abort":
            self.screen.note("stopped")

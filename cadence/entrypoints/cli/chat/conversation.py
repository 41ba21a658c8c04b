"""The messages of a chat, and the answers of a model in this process."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from cadence.core.errors import CadenceError
from cadence.entrypoints.cli.chat.attached import Content, question
from cadence.entrypoints.cli.chat.settings import ChatSettings

if TYPE_CHECKING:
    from cadence.entrypoints.cli.shared.streaming import Answer
    from cadence.entrypoints.llm import LLM

MAX_TOKENS = 1024  # of an answer

Write = Callable[[str], None]


class TurnError(CadenceError):
    """This answer failed; the conversation is as it was before, and may go on."""


class History(ABC):
    """The messages so far. What the model said before Ctrl-C stays part of them. Subclasses generate the answers."""

    def __init__(self, settings: ChatSettings, system: str) -> None:
        self.settings = settings
        self.set_system(system)

    def set_system(self, system: str) -> None:
        self.system = system
        self.reset()

    def reset(self) -> None:
        self.messages: list[dict[str, Any]] = [{"role": "system", "content": self.system}] if self.system else []
        self._failed: Content = ""  # the last question, if it brought no answer
        self._attached: list[dict[str, Any]] = []  # parts of the next question

    def attach(self, part: dict[str, Any]) -> int:
        """A picture for the next question; gives how many this has."""
        self._attached.append(part)
        return len(self._attached)

    def ask(self, text: str, write: Write) -> Answer:
        """Raises InvalidRequestError or TurnError, with the conversation unchanged."""
        self._failed, self._attached = question(self._attached, text), []
        return self._ask(self.messages, self._failed, write)

    def retry(self, write: Write) -> Answer:
        """The last question again: the one that failed, or the one before the last answer, which is replaced."""
        if self._failed:
            return self._ask(self.messages, self._failed, write)
        if not self.messages or self.messages[-1]["role"] != "assistant":
            raise TurnError("nothing was asked yet")
        return self._ask(self.messages[:-2], self.messages[-2]["content"], write)

    def _ask(self, earlier: list[dict[str, Any]], content: Content, write: Write) -> Answer:
        messages = [*earlier, {"role": "user", "content": content}]
        answer = self.answer(messages, write)
        self.messages = [*messages, {"role": "assistant", "content": answer.text}]
        self._failed = ""
        return answer

    @abstractmethod
    def answer(self, messages: list[dict[str, Any]], write: Write) -> Answer:
        """`write` gets the text as it comes; Ctrl-C ends it early, with finish reason `abort`."""


class Conversation(History):
    """With a model loaded in this process."""

    def __init__(self, llm: LLM, given: dict[str, Any], system: str) -> None:
        super().__init__(ChatSettings(given, MAX_TOKENS), system)
        self._llm = llm

    def answer(self, messages: list[dict[str, Any]], write: Write) -> Answer:
        from cadence.entrypoints.cli.shared.streaming import stream_answer, streaming_params
        from cadence.text.chat_template import ChatRequest

        prompt = self._llm.chat_prompt(ChatRequest(messages))
        params = streaming_params(self._llm, self.settings.given, MAX_TOKENS)
        return stream_answer(self._llm.llm_engine, prompt, params, write)

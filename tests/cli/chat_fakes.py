"""An engine, a model and a screen for tests of the chat."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

from cadence.core.errors import InvalidRequestError
from cadence.core.outputs import CompletionOutput, RequestOutput
from cadence.core.sampling_params import RequestOutputKind, SamplingParams
from cadence.text.chat_template import ChatRequest


class FakeEngine:
    """Says one word a step; ends by itself, or early when aborted. Interrupts its own process when told to."""

    def __init__(self, words: list[str], interrupt_after: int = -1, limit: int = 10**6) -> None:
        self.words, self.interrupt_after, self.limit = words, interrupt_after, limit
        self.prompts: list[Any] = []
        self.params: list[SamplingParams] = []
        self.left: list[str] = []
        self.steps = 0
        self.aborted = False

    def add_request(self, request_id: str, prompt: Any, params: SamplingParams) -> None:
        if len(prompt["prompt_token_ids"]) > self.limit:
            raise InvalidRequestError("the prompt is too long", "prompt")
        assert params.output_kind is RequestOutputKind.DELTA
        self.prompts.append(prompt)
        self.params.append(params)
        self.left, self.steps, self.aborted = list(self.words), 0, False

    def has_unfinished_requests(self) -> bool:
        return bool(self.left)

    def abort_request(self, ids: list[str]) -> None:
        self.aborted = True

    def step(self) -> list[RequestOutput]:
        if self.steps == self.interrupt_after:
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)  # pressed twice: still not the program
        self.steps += 1
        if self.aborted:
            self.left = []
            return [self._output("", [], "abort")]
        word = self.left.pop(0)
        return [self._output(word, [7], "" if self.left else "stop")]

    def _output(self, text: str, ids: list[int], reason: str) -> RequestOutput:
        completion = CompletionOutput(0, text, ids, finish_reason=reason or None)
        return RequestOutput("cli", None, [1, 2, 3], None, [completion], bool(reason))


class FakeLLM:
    def __init__(self, engine: FakeEngine) -> None:
        self.llm_engine = engine

    def chat_prompt(self, chat: ChatRequest) -> dict[str, list[int]]:
        assert chat.add_generation_prompt
        return {"prompt_token_ids": list(range(len(chat.messages)))}

    def get_default_sampling_params(self) -> SamplingParams:
        return SamplingParams(temperature=0.6, top_p=0.9)


class Script:
    """A screen that types the given lines and remembers what was shown."""

    def __init__(self, lines: list[str | type[BaseException]]) -> None:
        self.lines = lines
        self.text = ""
        self.notes: list[str] = []

    def session(self, model: str, commands: Sequence[str]) -> AbstractContextManager[None]:
        return contextlib.nullcontext()

    def read(self) -> str:
        line = self.lines.pop(0) if self.lines else EOFError
        if isinstance(line, str):
            return line
        raise line

    def write(self, text: str) -> None:
        self.text += text

    def end_answer(self) -> None:
        self.text += "\n"

    def note(self, text: str) -> None:
        self.notes.append(text)

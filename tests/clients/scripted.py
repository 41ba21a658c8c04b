"""A server that says what a script tells it to: the real application over an engine without a model, for what small
models cannot do, such as calling a tool and reading its result."""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cadence.core.contract.request import EngineRequest
from cadence.core.contract.update import RequestUpdate
from tests.clients.script import SCRIPT
from tests.server.fake_llm import FakeLLM, save_fake_model
from tests.server.helpers import RunningApp, run_app

TURN = "<|turn|>"
TEMPLATE = (
    "{% if tools %}{{ '<|turn|>tools: ' + (tools | tojson) + '\n' }}{% endif %}"
    "{% for message in messages %}{{ '<|turn|>' + message['role'] + ': ' + (message['content'] or '') + '\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|turn|>assistant: ' }}{% endif %}"
)
CONTEXT = 200_000  # tokens of the tiny tokenizer: coding agents begin with tens of thousands
NOT_IN_SCRIPT = "That is not in the script."
OPTIONS: dict[str, Any] = {
    "served_model_name": ["scripted", "gpt-5.5"],  # for names they know, clients send more
    "tool_call_parser": "hermes",
    "enable_auto_tool_choice": True,
    "reasoning_parser": "qwen3",
    "max_queued_tokens": 100_000_000,
}


def answer(prompt: str, script: dict[str, list[str]]) -> str:
    """What comes next in `prompt`: the script's question that was asked last, and of its answers the one that follows
    on those the assistant has given since. `{result}` in it stands for what a tool said last."""
    asked = max(script, key=lambda question: prompt.rfind(question))
    place = prompt.rfind(asked)
    if place < 0:
        return NOT_IN_SCRIPT
    turns = prompt[place:].split(TURN)[1:]
    given = sum(turn.startswith("assistant: ") for turn in turns) - 1  # the last is the one to be written
    results = [turn.removeprefix("tool: ").strip() for turn in turns if turn.startswith("tool: ")]
    answers = script[asked]
    return answers[min(given, len(answers) - 1)].replace("{result}", results[-1] if results else "nothing")


class ScriptedLLM(FakeLLM):
    def __init__(self, directory: Path, script: dict[str, list[str]]) -> None:
        super().__init__(directory, max_model_len=CONTEXT)
        self._answers = script
        self._said: dict[str, list[int]] = {}  # request id -> the tokens of its answer

    def _token(self, request: EngineRequest, step: int) -> RequestUpdate:
        if step == 0:
            prompt = self.tokenizer.decode(request.prompt_token_ids, skip_special_tokens=False)
            text = answer(prompt, self._answers)
            self._said[request.request_id] = [*self.tokenizer.encode(text, add_special_tokens=False), self._eos()]
        said = self._said[request.request_id]
        update = self._say(request, step, said[step % len(said)])
        if update.finish_reason is not None:
            del self._said[request.request_id]
        return update

    def _eos(self) -> int:
        return self.tokenizer.special.eos_id


def save_model(directory: Path) -> Path:
    save_fake_model(directory, TEMPLATE)
    config = directory / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "max_position_embeddings": CONTEXT}))
    return directory


@contextlib.contextmanager
def scripted_server(script: dict[str, list[str]] = SCRIPT, **options: Any) -> Iterator[RunningApp]:
    with tempfile.TemporaryDirectory(prefix="cadence-scripted-") as directory:
        llm = ScriptedLLM(save_model(Path(directory)), script)
        with run_app(llm, **{**OPTIONS, **options}) as app:
            yield app

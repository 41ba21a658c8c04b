"""What the tests of the completion and chat routes share: the official client, and engines that fail on purpose."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx
import openai

from cadence.core.outputs import RequestOutput
from cadence.core.sampling_params import SamplingParams
from tests.server.helpers import FakeLLM, RunningApp, ServerProcess

MODEL = "fake"
PROMPT = "The quick brown fox jumps over the lazy dog, and the dog does not mind"
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


def openai_client(server: RunningApp | ServerProcess, **options: Any) -> openai.OpenAI:
    """Without retries, and past any proxy of the machine."""
    http = httpx.Client(trust_env=False, timeout=240.0, verify=False)
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, http_client=http, **options)


class FailingLLM(FakeLLM):
    """Raises `error`, or, without one, ends with `error` as finish reason, after `after` outputs."""

    def __init__(self, *args: Any, after: int, error: Exception | None = None, **options: Any) -> None:
        super().__init__(*args, **options)
        self._after = after
        self._error = error

    async def generate(
        self, prompt: Any, params: SamplingParams, request_id: str, *, priority: int = 0
    ) -> AsyncIterator[RequestOutput]:
        number = 0
        async for output in super().generate(prompt, params, request_id, priority=priority):
            if number == self._after and self._error is not None:
                raise self._error
            if number == self._after:
                output.outputs[0].finish_reason, output.outputs[0].stop_reason = "error", "the step failed"
            yield output
            number += 1


def sse(text: str) -> list[str]:
    """The payloads of a stream's events."""
    return [block.removeprefix("data: ") for block in text.split("\n\n") if block]

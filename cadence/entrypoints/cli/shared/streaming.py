"""One answer, streamed: shared by `generate` and `chat`."""

from __future__ import annotations

import dataclasses
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING, Any

from cadence.core.sampling_params import RequestOutputKind, SamplingParams

if TYPE_CHECKING:
    from cadence.engine.llm_engine import LLMEngine
    from cadence.entrypoints.llm import LLM


_ENDS = {"length": "token limit (/set max_tokens N)", "abort": "stopped", "error": "ended by an error"}


@dataclass(slots=True)
class Answer:
    text: str = ""
    prompt_tokens: int = 0
    output_tokens: int = 0
    finish_reason: str = ""  # stop | length | abort | error
    first_token_s: float = 0.0  # from the request to its first token
    total_s: float = 0.0

    @property
    def rate(self) -> float:
        """Tokens per second after the first; 0 = too few to tell."""
        rest = self.total_s - self.first_token_s
        return (self.output_tokens - 1) / rest if self.output_tokens > 1 and rest > 0 else 0.0

    def summary(self) -> str:
        speed = f", {self.rate:.1f} tokens/s" if self.rate else ""
        return (
            f"{self.prompt_tokens} tokens in, {self.output_tokens} out{speed}, "
            f"first after {self.first_token_s:.2f} s, ended by {self.finish_reason}"
        )

    def speed(self) -> str:
        """The same in short, for people."""
        count = f"{self.output_tokens} token{'' if self.output_tokens == 1 else 's'}"
        rate = f"{self.rate:.1f} tok/s" if self.rate else ""
        first = f"first after {self.first_token_s:.2f} s" if self.output_tokens else ""
        return " · ".join(filter(None, [count, rate, first, _ENDS.get(self.finish_reason, "")]))


class StopOnInterrupt:
    """Turns Ctrl-C into a request to stop, read between steps: no step is cut in half, however often it is pressed."""

    def __init__(self) -> None:
        self.requested = False

    def __enter__(self) -> StopOnInterrupt:
        self._previous = signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(self, *exc: object) -> None:
        signal.signal(signal.SIGINT, self._previous)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.requested = True


def streaming_params(llm: LLM, given: dict[str, Any], max_tokens: int) -> SamplingParams:
    """What the command line says, over what the model recommends."""
    options = {"max_tokens": max_tokens, **given, "output_kind": RequestOutputKind.DELTA}
    return dataclasses.replace(llm.get_default_sampling_params(), **options)


def stream_answer(engine: LLMEngine, prompt: Any, params: SamplingParams, write: Callable[[str], None]) -> Answer:
    """Runs one request to its end or to Ctrl-C, whichever comes first; `write` gets the text as it comes."""
    answer = Answer()
    start = time.perf_counter()
    with StopOnInterrupt() as interrupt:
        engine.add_request("cli", prompt, params)
        while engine.has_unfinished_requests():
            if interrupt.requested:
                engine.abort_request(["cli"])
            for output in engine.step():
                completion = output.outputs[0]
                if completion.token_ids and not answer.output_tokens:
                    answer.first_token_s = time.perf_counter() - start
                answer.prompt_tokens = len(output.prompt_token_ids or ())
                answer.output_tokens += len(completion.token_ids)
                answer.text += completion.text
                answer.finish_reason = completion.finish_reason or ""
                write(completion.text)
    answer.total_s = time.perf_counter() - start
    return answer

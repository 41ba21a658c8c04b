"""Plain data that scripts for vLLM make, where Cadence has no class of its own for it."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator
from enum import IntEnum, StrEnum
from typing import Any

from cadence.core.outputs import Logprob

# Types written in annotations.
PromptLogprobs = list[dict[int, Logprob] | None]
SampleLogprobs = list[dict[int, Logprob]]
LogprobsOnePosition = dict[int, Logprob]
ChatCompletionMessageParam = dict[str, Any]
MultiModalDataDict = dict[str, Any]


class SamplingType(IntEnum):
    GREEDY = 0
    RANDOM = 1
    RANDOM_SEED = 2


class UsageContext(StrEnum):
    """What programs say of themselves; nothing is reported anywhere."""

    UNKNOWN_CONTEXT = "UNKNOWN_CONTEXT"
    LLM_CLASS = "LLM_CLASS"
    API_SERVER = "API_SERVER"
    OPENAI_API_SERVER = "OPENAI_API_SERVER"
    OPENAI_BATCH_RUNNER = "OPENAI_BATCH_RUNNER"
    ENGINE_CONTEXT = "ENGINE_CONTEXT"


class ConfigDict(dict[str, Any]):
    """A group of engine options (`CompilationConfig(...)`, `ProfilerConfig(...)`) as the object `LLM` takes for it."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


class Counter:
    """Counts up, one with each `next`."""

    def __init__(self, start: int = 0) -> None:
        self.counter = start

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        value, self.counter = self.counter, self.counter + 1
        return value

    def reset(self) -> None:
        self.counter = 0


def random_uuid() -> str:
    """16 hexadecimal digits."""
    return uuid.uuid4().hex[:16]


def init_logger(name: str) -> logging.Logger:
    return logging.getLogger(name)

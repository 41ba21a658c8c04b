"""What users get back in place of text, with the names they know from vLLM."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, Self, TypeVar

import numpy as np

from cadence.core.errors import AbortedError, AdapterError, BusyError, CadenceError, EngineDeadError
from cadence.core.failure import FailureCode
from cadence.core.outputs import RequestOutput


@dataclass(slots=True)
class PoolingOutput:
    data: Any  # [entries], or [tokens, entries], float32: a tensor from `LLM`, else a numpy array


@dataclass(slots=True)
class EmbeddingOutput:
    embedding: list[float]

    @classmethod
    def from_base(cls, output: PoolingOutput) -> Self:
        return cls(_vector(output))

    @property
    def hidden_size(self) -> int:
        return len(self.embedding)


@dataclass(slots=True)
class ClassificationOutput:
    probs: list[float]

    @classmethod
    def from_base(cls, output: PoolingOutput) -> Self:
        return cls(_vector(output))

    @property
    def num_classes(self) -> int:
        return len(self.probs)


@dataclass(slots=True)
class ScoringOutput:
    score: float

    @classmethod
    def from_base(cls, output: PoolingOutput) -> Self:
        """Of a model with one label."""
        return cls(_vector(output)[0])


V = TypeVar("V", PoolingOutput, EmbeddingOutput, ClassificationOutput, ScoringOutput)


@dataclass(slots=True)
class PoolingRequestOutput(Generic[V]):
    request_id: str
    outputs: V
    prompt_token_ids: list[int]
    finished: bool = True
    num_cached_tokens: int = 0


class EmbeddingRequestOutput(PoolingRequestOutput[EmbeddingOutput]):
    __slots__ = ()

    @classmethod
    def from_base(cls, output: PoolingRequestOutput[PoolingOutput]) -> Self:
        values = EmbeddingOutput.from_base(output.outputs)
        return cls(output.request_id, values, output.prompt_token_ids, output.finished, output.num_cached_tokens)


class ClassificationRequestOutput(PoolingRequestOutput[ClassificationOutput]):
    __slots__ = ()

    @classmethod
    def from_base(cls, output: PoolingRequestOutput[PoolingOutput]) -> Self:
        values = ClassificationOutput.from_base(output.outputs)
        return cls(output.request_id, values, output.prompt_token_ids, output.finished, output.num_cached_tokens)


class ScoringRequestOutput(PoolingRequestOutput[ScoringOutput]):
    __slots__ = ()

    @classmethod
    def from_base(cls, output: PoolingRequestOutput[PoolingOutput]) -> Self:
        values = ScoringOutput.from_base(output.outputs)
        return cls(output.request_id, values, output.prompt_token_ids, output.finished, output.num_cached_tokens)


def pooled(output: RequestOutput) -> PoolingRequestOutput[PoolingOutput]:
    """Of a request that has ended. Raises where it ended without values."""
    if output.pooled_np is None:
        raise _failed(output)
    return PoolingRequestOutput(
        request_id=output.request_id,
        outputs=PoolingOutput(output.pooled_np),
        prompt_token_ids=output.prompt_token_ids or [],
        finished=output.finished,
        num_cached_tokens=output.num_cached_tokens or 0,
    )


def _failed(output: RequestOutput) -> CadenceError:
    end = output.outputs[0]
    if end.finish_reason == "abort":
        return AbortedError(f"request {output.request_id} was aborted")
    why = str(end.stop_reason)
    if end.failure is FailureCode.BAD_ADAPTER:
        return AdapterError(why)
    if end.failure is FailureCode.BUSY:
        return BusyError(why)
    if end.failure is FailureCode.ENGINE_DOWN:
        return EngineDeadError(why)
    return CadenceError(why)


def _vector(output: PoolingOutput) -> list[float]:
    values: list[float] = np.asarray(output.data, dtype=np.float32).ravel().tolist()
    return values

"""What users get back in place of text, with the names they know from vLLM."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt

from cadence.core.outputs import RequestOutput


@dataclass(slots=True)
class PoolingOutput:
    data: npt.NDArray[np.float32]  # [entries], or [tokens, entries]


@dataclass(slots=True)
class EmbeddingOutput:
    embedding: list[float]

    @property
    def hidden_size(self) -> int:
        return len(self.embedding)


@dataclass(slots=True)
class ClassificationOutput:
    probs: list[float]

    @property
    def num_classes(self) -> int:
        return len(self.probs)


@dataclass(slots=True)
class ScoringOutput:
    score: float


V = TypeVar("V", PoolingOutput, EmbeddingOutput, ClassificationOutput, ScoringOutput)


@dataclass(slots=True)
class PoolingRequestOutput(Generic[V]):
    request_id: str
    outputs: V
    prompt_token_ids: list[int]
    finished: bool = True
    num_cached_tokens: int = 0


EmbeddingRequestOutput = PoolingRequestOutput[EmbeddingOutput]
ClassificationRequestOutput = PoolingRequestOutput[ClassificationOutput]
ScoringRequestOutput = PoolingRequestOutput[ScoringOutput]


def pooled(output: RequestOutput) -> PoolingRequestOutput[PoolingOutput]:
    """Of a request that has ended with values."""
    assert output.pooled_np is not None
    return PoolingRequestOutput(
        request_id=output.request_id,
        outputs=PoolingOutput(output.pooled_np),
        prompt_token_ids=output.prompt_token_ids or [],
        finished=output.finished,
        num_cached_tokens=output.num_cached_tokens or 0,
    )

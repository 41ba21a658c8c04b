"""What a model can make of hidden states: resolved from its files and from what the user asked."""

from __future__ import annotations

from dataclasses import dataclass

from cadence.core.errors import InvalidRequestError
from cadence.core.pooling import ALL, CLASSIFY, EMBED, LAST, NO_TAG, NONE, SOFTMAX, PoolingSpec
from cadence.core.pooling_params import PoolingParams


@dataclass(frozen=True, slots=True)
class PoolingConfig:
    """Of one model. An engine that only pools has `generates` False."""

    generates: bool = True  # it writes tokens, too
    sees_both_ways: bool = False  # an encoder: a prompt is computed in one step, and leaves nothing for another
    tasks: tuple[str, ...] = ("embed", "token_embed")  # the first is what `encode` without a task means
    embedding: str = LAST  # how hidden states become one embedding: last | cls | mean
    normalize: bool = True  # embeddings to length 1
    size: int = 0  # entries of an embedding
    dimensions: tuple[int, ...] = ()  # sizes to which embeddings may be cut; () = none
    any_dimension: bool = False  # embeddings may be cut anywhere
    scoring: str = LAST  # how hidden states become one vector of scores
    activation: str = SOFTMAX  # of scores
    labels: tuple[str, ...] = ()  # of the scores, in order
    step_tag: int = NO_TAG
    returned: tuple[int, ...] = ()

    def spec(self, params: PoolingParams) -> PoolingSpec:
        """Parameters without a task have the first."""
        task = params.task or (self.tasks or ("embed",))[0]
        if task not in self.tasks:
            can = f"it can {', '.join(self.tasks)}" if self.tasks else "it generates text"
            raise InvalidRequestError(f"this model cannot {task}: {can}", "task")
        return self._embedding(params, task) if task in ("embed", "token_embed") else self._scores(params, task)

    def _embedding(self, params: PoolingParams, task: str) -> PoolingSpec:
        asked = params.use_activation if params.normalize is None else params.normalize
        return PoolingSpec(
            pooling=ALL if task == "token_embed" else self.embedding,
            head=EMBED,
            dimensions=self._checked(params.dimensions),
            normalize=self.normalize if asked is None else asked,
        )

    def _scores(self, params: PoolingParams, task: str) -> PoolingSpec:
        return PoolingSpec(
            pooling=ALL if task == "token_classify" else self.scoring,
            head=CLASSIFY,
            activation=NONE if params.use_activation is False else self.activation,
        )

    def _checked(self, dimensions: int | None) -> int:
        if dimensions is None or dimensions == self.size:
            return 0
        if (self.any_dimension and dimensions < self.size) or dimensions in self.dimensions:
            return dimensions
        raise InvalidRequestError(f"this model makes embeddings of {self.size} entries, not {dimensions}", "dimensions")


DECODER = PoolingConfig()

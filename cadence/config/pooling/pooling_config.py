"""What a model can make of hidden states, as `config/resolve_pooling.py` finds it, and of one request's parameters."""

from __future__ import annotations

from dataclasses import dataclass

from cadence.core.errors import InvalidRequestError
from cadence.core.pooled.pooling import (
    ALL,
    CLASSIFY,
    EMBED,
    LAST,
    NO_TAG,
    NONE,
    SIGMOID,
    SOFTMAX,
    STEP,
    PoolingSpec,
)
from cadence.core.pooled.pooling_params import PoolingParams


@dataclass(frozen=True, slots=True)
class TextForm:
    """What becomes of a text before it is tokenised."""

    prefix: str = ""
    lower_case: bool = False

    def of(self, text: str) -> str:
        text = self.prefix + text
        return text.lower() if self.lower_case else text


PLAIN_TEXT = TextForm()


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
    cut: int = 0  # entries of an embedding where a request does not say; 0 = all
    scoring: str = LAST  # how hidden states become one vector of scores
    by_token: str = ALL  # of which tokens there are scores: all | step
    activates: bool = True  # scores go through the activation, where a request does not say
    activation: str = SOFTMAX  # of scores
    score_activation: str = SIGMOID  # of the task `score`
    labels: tuple[str, ...] = ()  # of the scores, in order
    step_tag: int = NO_TAG
    returned: tuple[int, ...] = ()
    prompts: tuple[tuple[str, str], ...] = ()  # by name: texts that the model wants before others
    default_prompt: str = ""  # the text of one of them, for requests that name none
    lower_case: bool = False  # texts are tokenised in lower case
    similarity: str = "cosine"  # how two embeddings are compared: cosine | dot | euclidean | manhattan

    @property
    def compared(self) -> str:
        """The task by whose values two texts are compared: their embeddings, or those of their tokens; "" = none"""
        return next((task for task in self.tasks if task in ("embed", "token_embed")), "")

    def check_writes(self) -> None:
        """Raises InvalidRequestError where the model writes no text."""
        if not self.generates:
            raise InvalidRequestError(f"this model writes no text: it can {', '.join(self.tasks)}")

    def spec(self, params: PoolingParams) -> PoolingSpec:
        """Parameters without a task have the first."""
        task = params.task or (self.tasks or ("embed",))[0]
        if task not in self.tasks:
            can = f"it can {', '.join(self.tasks)}" if self.tasks else "it generates text"
            raise InvalidRequestError(f"this model cannot {task}: {can}", "task")
        return self._embedding(params, task) if task in ("embed", "token_embed") else self._scores(params, task)

    def form(self, name: str | None = None) -> TextForm:
        """name: of the prompt that goes before a text; None = the default"""
        return TextForm(self._prompt(name), self.lower_case)

    def _prompt(self, name: str | None) -> str:
        if name is None:
            return self.default_prompt
        known = dict(self.prompts)
        if name not in known:
            has = f"it has {', '.join(known)}" if known else "its files have none"
            raise InvalidRequestError(f"this model has no prompt {name!r}: {has}", "prompt_name")
        return known[name]

    def _embedding(self, params: PoolingParams, task: str) -> PoolingSpec:
        asked = params.use_activation if params.normalize is None else params.normalize
        return PoolingSpec(
            pooling=ALL if task == "token_embed" else self.embedding,
            head=EMBED,
            dimensions=self.cut if params.dimensions is None else self._checked(params.dimensions),
            normalize=self.normalize if asked is None else asked,
        )

    def _scores(self, params: PoolingParams, task: str) -> PoolingSpec:
        if params.dimensions is not None:
            raise InvalidRequestError(f"dimensions are for embeddings; the task is {task}", "dimensions")
        pooling = self.scoring
        if task == "token_classify":
            pooling = self.by_token if params.step_tag_id is None else STEP
        activates = self.activates if params.use_activation is None else params.use_activation
        activation = self.score_activation if task == "score" else self.activation
        return PoolingSpec(
            pooling=pooling,
            head=CLASSIFY,
            activation=activation if activates else NONE,
            step_tag=NO_TAG if pooling != STEP else self._tag(params),
            returned=self._returned(params),
        )

    def _tag(self, params: PoolingParams) -> int:
        return self.step_tag if params.step_tag_id is None else params.step_tag_id

    def _returned(self, params: PoolingParams) -> tuple[int, ...]:
        if params.returned_token_ids is None:
            return self.returned
        if self.labels and any(each >= len(self.labels) for each in params.returned_token_ids):
            message = f"returned_token_ids: this model has {len(self.labels)} scores, counted from 0"
            raise InvalidRequestError(message, "returned_token_ids")
        return tuple(params.returned_token_ids)

    def _checked(self, dimensions: int) -> int:
        if dimensions == self.size:
            return 0
        if (self.any_dimension and dimensions < self.size) or dimensions in self.dimensions:
            return dimensions
        smaller = ", ".join(map(str, self.dimensions)) or ("any smaller number" if self.any_dimension else "no others")
        message = f"this model makes embeddings of {self.size} entries ({smaller}), not {dimensions}"
        raise InvalidRequestError(message, "dimensions")


DECODER = PoolingConfig()

"""What is made of a prompt's hidden states, under vLLM's names. Checked when made, so what exists is valid."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cadence.core.checks import integer, invalid, token_ids, typed
from cadence.core.errors import InvalidRequestError
from cadence.core.sampling_params import RequestOutputKind

TASKS = ("embed", "token_embed", "classify", "token_classify", "score")
OLDER_TASKS = {"encode": "token_embed", "reward": "token_classify", "plugin": ""}


@dataclass(slots=True)
class PoolingParams:
    truncate_prompt_tokens: int | None = None  # a longer prompt keeps so many; -1: as many as the model takes
    dimensions: int | None = None  # leading entries of an embedding, where the model was made for that
    normalize: bool | None = None  # embeddings to length 1; None = as the model's files say
    use_activation: bool | None = None  # scores become probabilities; None = yes. Of embeddings: `normalize`
    task: str | None = None  # None = the method's
    step_tag_id: int | None = None  # the token after each step of a solution; None = as the model's files say
    returned_token_ids: list[int] | None = None  # of a head's scores, these
    skip_reading_prefix_cache: bool | None = None
    extra_kwargs: Mapping[str, Any] | None = None
    output_kind: RequestOutputKind = RequestOutputKind.FINAL_ONLY
    activation: bool | None = None  # an older name of use_activation; None once made
    softmax: bool | None = None  # another

    def __post_init__(self) -> None:
        if self.truncate_prompt_tokens is not None:
            self.truncate_prompt_tokens = integer("truncate_prompt_tokens", self.truncate_prompt_tokens, low=-1)
        if self.dimensions is not None:
            self.dimensions = integer("dimensions", self.dimensions, low=1)
        if self.step_tag_id is not None:
            self.step_tag_id = integer("step_tag_id", self.step_tag_id, low=0)
        if self.returned_token_ids is not None:
            self.returned_token_ids = token_ids("returned_token_ids", self.returned_token_ids)
        for name in ("normalize", "use_activation", "activation", "softmax", "skip_reading_prefix_cache"):
            if getattr(self, name) is not None:
                typed(name, getattr(self, name), bool, "True, False or None")
        if self.output_kind is not RequestOutputKind.FINAL_ONLY:
            raise invalid("output_kind", self.output_kind, "FINAL_ONLY: there is one output")
        self._settle_names()

    def _settle_names(self) -> None:
        for older in ("activation", "softmax"):
            if getattr(self, older) is not None and self.use_activation is None:
                self.use_activation = getattr(self, older)
            setattr(self, older, None)
        if self.task is not None:
            self.task = OLDER_TASKS.get(self.task, self.task)
            if self.task not in TASKS:
                raise InvalidRequestError(f"task must be one of {', '.join(TASKS)}; got {self.task!r}", "task")

"""What is made of a request's hidden states instead of tokens, as plain data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from cadence.core.inputs.attachments import Attachment

POOLING = "pooling"  # the feature's name

LAST, CLS, MEAN, ALL, STEP = "last", "cls", "mean", "all", "step"  # which hidden states; all and step: one each
EMBED, CLASSIFY = "embed", "classify"  # heads of a model: what they are made into
NONE, SIGMOID, SOFTMAX = "none", "sigmoid", "softmax"  # what is done to a head's scores
NO_TAG = -1


@dataclass(frozen=True, slots=True)
class PoolingSpec(Attachment):
    """A request with one ends when its last token is computed, with values in place of tokens."""

    pooling: str  # last | cls | mean: of all tokens one vector; all, step: of each token, or of each step's tag
    head: str  # embed | classify
    dimensions: int = 0  # leading entries that are kept; 0 = all
    normalize: bool = False  # to length 1, after that
    activation: str = NONE
    step_tag: int = NO_TAG  # step: the token after each step, whose states are kept
    returned: tuple[int, ...] = ()  # entries of the head's scores that are kept; () = all
    second_from: int = 0  # the place of the first token of a second text; 0 = there is one text
    feature: str = POOLING

    lacking: ClassVar[str] = "this engine's model makes no embeddings or scores of its hidden states"
    samples: ClassVar[bool] = False

    @property
    def reads_cache(self) -> bool:
        """A token found in the cache has no hidden state."""
        return self.pooling == LAST

    @property
    def by_token(self) -> bool:
        return self.pooling in (ALL, STEP)

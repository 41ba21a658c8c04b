"""What sampling leaves on the device, and how it reads once it has reached the host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from cadence.core.contract.step import IntArray, TokenLogprobs
from cadence.core.failure import Failure, FailureCode
from cadence.sample.logprobs import ScoredGroup

NO_TOKEN_LEFT = Failure(
    FailureCode.NO_TOKEN_LEFT,
    "no token can be chosen: allowed_token_ids, bad_words, min_tokens or a logits processor left none",
)
BAD_MODEL = Failure(FailureCode.BAD_LOGITS, "the model produced NaN or infinite logits")


# Of S lines: what was committed at each [S], logprobs and failures by line. A line that its row did not come to,
# because a draft before it was not kept, or that is padding, may have either.
Unpacked = tuple[IntArray, Mapping[int, TokenLogprobs], Mapping[int, Failure]]


@dataclass(frozen=True, slots=True)
class SampleOutput:
    tokens: torch.Tensor  # [S] int32
    peaks: list[torch.Tensor]  # [S] float32 each: highest logit from the model, then, where steps ran, at the draw
    logprobs: list[ScoredGroup]
    errors: dict[int, Failure]  # by line: what was found out on the host already

    def tensors(self) -> list[torch.Tensor]:
        """To be downloaded for `unpack`."""
        scores = (tensor for group in self.logprobs for tensor in group.scores.tensors())
        return [self.tokens, *self.peaks, *scores]

    def unpack(self, arrays: Sequence[np.ndarray]) -> Unpacked:
        """The arrays of `tensors`, on the host."""
        first_score = 1 + len(self.peaks)
        logprobs: dict[int, TokenLogprobs] = {}
        for i, group in enumerate(self.logprobs):
            start = first_score + 3 * i
            logprobs.update(group.unpack(*arrays[start : start + 3]))
        return arrays[0], logprobs, _faults(arrays[1:first_score]) | self.errors


def _faults(peaks: Sequence[np.ndarray]) -> dict[int, Failure]:
    """By line: NaN and +inf are always a line's highest logit; -inf is where nothing else is left."""
    faults = dict.fromkeys(np.flatnonzero(~np.isfinite(peaks[-1])).tolist(), NO_TOKEN_LEFT)
    return faults | dict.fromkeys(np.flatnonzero(~np.isfinite(peaks[0])).tolist(), BAD_MODEL)

"""What sampling leaves on the device, and how it reads once it has reached the host."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from cadence.core.failure import Failure, FailureCode
from cadence.core.step import NO_TOKEN, IntArray, TokenLogprobs
from cadence.sample.logprobs import ScoredGroup

NO_TOKEN_LEFT = Failure(
    FailureCode.NO_TOKEN_LEFT,
    "no token can be chosen: allowed_token_ids, bad_words, min_tokens or a logits processor left none",
)
BAD_MODEL = Failure(FailureCode.BAD_LOGITS, "the model produced NaN or infinite logits")


@dataclass(frozen=True, slots=True)
class SampleOutput:
    rows_np: np.ndarray  # [S] int32
    tokens: torch.Tensor  # [S] int32
    peaks: list[torch.Tensor]  # [S] float32 each: highest logit from the model, then, where steps ran, at the draw
    logprobs: list[ScoredGroup]
    errors: dict[int, Failure]  # by row: what was found out on the host already

    def tensors(self) -> list[torch.Tensor]:
        """To be downloaded for `unpack`."""
        scores = (tensor for group in self.logprobs for tensor in group.scores.tensors())
        return [self.tokens, *self.peaks, *scores]

    def unpack(self, arrays: Sequence[np.ndarray]) -> tuple[IntArray, dict[int, TokenLogprobs], dict[int, Failure]]:
        """The arrays of `tensors` -> tokens [S], logprobs by row, errors by row (which have no token)."""
        first_score = 1 + len(self.peaks)
        logprobs: dict[int, TokenLogprobs] = {}
        for i, group in enumerate(self.logprobs):
            start = first_score + 3 * i
            logprobs.update(group.unpack(*arrays[start : start + 3]))
        errors = self._faults(arrays[1:first_score]) | self.errors
        tokens_np = np.where(np.isin(self.rows_np, list(errors)), NO_TOKEN, arrays[0]) if errors else arrays[0]
        return tokens_np, logprobs, errors

    def _faults(self, peaks: Sequence[np.ndarray]) -> dict[int, Failure]:
        """NaN and +inf are always a line's highest logit; -inf is where nothing else is left."""
        faults = dict.fromkeys(self.rows_np[~np.isfinite(peaks[-1])].tolist(), NO_TOKEN_LEFT)
        return faults | dict.fromkeys(self.rows_np[~np.isfinite(peaks[0])].tolist(), BAD_MODEL)

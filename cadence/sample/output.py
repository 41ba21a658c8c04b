"""What sampling leaves on the device, and how it reads once it has reached the host."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from cadence.core.step import IntArray, TokenLogprobs
from cadence.sample.logprobs import ScoredGroup

_BAD_MODEL = "the model produced NaN or infinite logits"
_BAD_CHOICE = "no token can be chosen: allowed_token_ids, bad_words, min_tokens or a logits processor left none"


@dataclass(frozen=True, slots=True)
class SampleOutput:
    rows_np: np.ndarray  # [S] int32
    tokens: torch.Tensor  # [S] int32
    peaks: list[torch.Tensor]  # [S] float32 each: highest logit from the model, then, where steps ran, at the draw
    logprobs: list[ScoredGroup]
    errors: dict[int, str]  # by row: what was found out on the host already

    def tensors(self) -> list[torch.Tensor]:
        """To be downloaded for `unpack`."""
        scores = (tensor for group in self.logprobs for tensor in group.scores.tensors())
        return [self.tokens, *self.peaks, *scores]

    def unpack(self, arrays: Sequence[np.ndarray]) -> tuple[IntArray, dict[int, TokenLogprobs], dict[int, str]]:
        """The arrays of `tensors` -> tokens [S], logprobs by row, errors by row (whose tokens mean nothing)."""
        first_score = 1 + len(self.peaks)
        logprobs: dict[int, TokenLogprobs] = {}
        for i, group in enumerate(self.logprobs):
            start = first_score + 3 * i
            logprobs.update(group.unpack(*arrays[start : start + 3]))
        return arrays[0], logprobs, self._faults(arrays[1:first_score]) | self.errors

    def _faults(self, peaks: Sequence[np.ndarray]) -> dict[int, str]:
        """NaN and +inf are always a line's highest logit; -inf is where nothing else is left."""
        faults = dict.fromkeys(self.rows_np[~np.isfinite(peaks[-1])].tolist(), _BAD_CHOICE)
        return faults | dict.fromkeys(self.rows_np[~np.isfinite(peaks[0])].tolist(), _BAD_MODEL)

"""A step that was queued: its result travels to the host behind the device's work."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch

from cadence.core.step import IntArray, PromptLogprobs, StepResult, TokenLogprobs
from cadence.device.base import Device
from cadence.sample.output import SampleOutput


class Observation(Protocol):
    """What a hook on the hidden states leaves behind: tensors to fetch, and how to read them."""

    def tensors(self) -> list[torch.Tensor]: ...

    def unpack(self, arrays_np: list[np.ndarray]) -> dict[int, PromptLogprobs]: ...


class NoSample:
    """A step in which no row reached its last token."""

    def __init__(self, no_rows: torch.Tensor) -> None:
        self.tokens = no_rows.int()  # [0] int32

    def tensors(self) -> list[torch.Tensor]:
        return []

    def unpack(self, arrays_np: list[np.ndarray]) -> tuple[IntArray, dict[int, TokenLogprobs], dict[int, str]]:
        return np.empty(0, dtype=np.int32), {}, {}


class StepHandle:
    def __init__(
        self, step_id: int, device: Device, sampled: SampleOutput | NoSample, observations: Sequence[Observation]
    ) -> None:
        self._step_id = step_id
        self._sampled = sampled
        self._observations = observations
        self._parts = [sampled.tensors(), *(observation.tensors() for observation in observations)]
        self._transfer = device.download([tensor for part in self._parts for tensor in part])

    def result(self) -> StepResult:
        """Waits for this step only."""
        arrays_np = iter(self._transfer.wait())
        first, *rest = [[next(arrays_np) for _ in part] for part in self._parts]
        token_ids_np, logprobs, errors = self._sampled.unpack(first)
        prompt_logprobs: dict[int, PromptLogprobs] = {}
        for observation, part_np in zip(self._observations, rest, strict=True):
            prompt_logprobs.update(observation.unpack(part_np))
        return StepResult(self._step_id, token_ids_np, logprobs, prompt_logprobs, errors)

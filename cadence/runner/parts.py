"""Forwards that were queued: their results travel to the host behind the device's work."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
import torch

from cadence.core.failure import Failure
from cadence.core.step import NO_TOKEN, IntArray, RowOutput, StepResult
from cadence.device.base import Device, Transfer
from cadence.kernels.interface.row_ops import FAILED
from cadence.sample.output import BAD_MODEL, SampleOutput


class Observation(Protocol):
    """What a hook on the hidden states leaves behind: tensors to fetch, and how to read them."""

    def tensors(self) -> list[torch.Tensor]: ...

    def unpack(self, arrays_np: list[np.ndarray]) -> Mapping[int, RowOutput]:
        """-> by row"""
        ...


class NoSample:
    """A forward in which no row reached its last token."""

    def tensors(self) -> list[torch.Tensor]:
        return []

    def unpack(self, arrays_np: list[np.ndarray]) -> tuple[IntArray, Mapping[int, RowOutput], dict[int, Failure]]:
        return np.empty(0, dtype=np.int32), {}, {}


class Part(Protocol):
    """Some forwards of a step, queued."""

    num_forwards: int

    def result(self, step_id: int) -> StepResult: ...


class SampledPart:
    """One forward, with whatever its rows asked for."""

    num_forwards = 1

    def __init__(
        self, device: Device, sampled: SampleOutput | NoSample, observations: Sequence[Observation] = ()
    ) -> None:
        self._sampled = sampled
        self._observations = observations
        self._tensors = [sampled.tensors(), *(observation.tensors() for observation in observations)]
        self._transfer = device.download([tensor for group in self._tensors for tensor in group])

    def result(self, step_id: int) -> StepResult:
        arrays_np = iter(self._transfer.wait())
        first, *rest = [[next(arrays_np) for _ in group] for group in self._tensors]
        token_ids_np, of_tokens, errors = self._sampled.unpack(first)
        outputs = list(of_tokens.items())
        for observation, group_np in zip(self._observations, rest, strict=True):
            outputs += observation.unpack(group_np).items()
        return StepResult(step_id, np.maximum(token_ids_np[None], NO_TOKEN), outputs, errors)


class DrawnPart:
    """Some forwards whose rows wanted tokens and nothing else."""

    def __init__(self, rows_np: IntArray, transfers: Sequence[Transfer], num_forwards: int) -> None:
        """transfers: of tokens [m, S] int32 each"""
        self.num_forwards = num_forwards
        self._rows_np = rows_np
        self._transfers = transfers

    def result(self, step_id: int) -> StepResult:
        tokens_np = np.concatenate([array_np for transfer in self._transfers for array_np in transfer.wait()])
        failed_np = (tokens_np == FAILED).any(axis=0)
        errors = dict.fromkeys(self._rows_np[failed_np].tolist(), BAD_MODEL) if failed_np.any() else {}
        return StepResult(step_id, np.maximum(tokens_np, NO_TOKEN), errors=errors)

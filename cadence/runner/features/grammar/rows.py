"""The feature `grammar` on the device. Masks are applied by a logits step (`sample/masks.py`)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from cadence.core.contract.step import IntArray
from cadence.core.contract.token_masks import TokenMasks
from cadence.core.grammar import GRAMMAR
from cadence.device.base import Device
from cadence.runner.feature import DeviceFeature
from cadence.runner.limits import RunnerLimits
from cadence.runner.state.requests import RequestRows
from cadence.sample.pipeline import SamplePipeline


class DraftsAhead:
    """A `Report`: what rows that waited will verify next, by row. The host writes a mask for each."""

    def __init__(self, rows_np: IntArray, tensors: Sequence[torch.Tensor]) -> None:
        """rows [n]; tensors: their drafts [n, most], of which there are so many [n]"""
        self._rows_np = rows_np
        self._tensors = list(tensors)

    def tensors(self) -> list[torch.Tensor]:
        return self._tensors

    def unpack(self, arrays_np: list[np.ndarray]) -> dict[int, list[int]]:
        rows = zip(self._rows_np.tolist(), *(array_np.tolist() for array_np in arrays_np), strict=True)
        return {row: drafts[:count] for row, drafts, count in rows if count > 0}


class DraftsAheadReporter:
    name = GRAMMAR

    def __init__(self, device: Device, requests: RequestRows, most_drafts: int) -> None:
        self._device = device
        self._requests = requests
        self._most = most_drafts

    def report(self, waiting: Sequence[int]) -> DraftsAhead:
        rows_np = np.array(waiting, dtype=np.int64)
        return DraftsAhead(rows_np.astype(np.int32), self._requests.drafts(self._device.upload(rows_np), self._most))


class DeviceGrammar(DeviceFeature):
    name = GRAMMAR

    def __init__(self, device: Device, requests: RequestRows, sampler: SamplePipeline, limits: RunnerLimits) -> None:
        """Where nothing is proposed for rows, there is nothing to report to the host."""
        self._requests = requests
        self._sampler = sampler
        most = limits.width - 1
        self.reporters = [DraftsAheadReporter(device, requests, most)] if most else []

    def rows_of(self, payload: list[tuple[int, list[int]]]) -> list[int]:
        return [row for row, _ in payload]

    def apply(self, payload: list[tuple[int, list[int]]]) -> None:
        """(row, tokens that must come next): they are its drafts, in place of any other."""
        self._requests.give(payload)

    def post(self, payload: TokenMasks) -> None:
        self._sampler.post(payload)

"""Forwards that were queued, and their results, which are copied to the host after the device's work."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol

import numpy as np
import torch

from cadence.core.contract.step import NO_TOKEN, IntArray, ResultPayloads, RowOutput, StepResult
from cadence.core.failure import Failure
from cadence.device.base import Device, Transfer
from cadence.kernels.interface.row_ops import FAILED, NO_DRAFT
from cadence.runner.feature import Observation, Report
from cadence.runner.layout import BatchLayout
from cadence.sample.output import BAD_MODEL, SampleOutput, Unpacked


class NoSample:
    """A forward in which no row reached its last token."""

    def tensors(self) -> list[torch.Tensor]:
        return []

    def unpack(self, arrays_np: list[np.ndarray]) -> Unpacked:
        return np.empty(0, dtype=np.int32), {}, {}


NO_REPORTS: Mapping[str, Report] = MappingProxyType({})


class Part(Protocol):
    """Some forwards of a step, queued."""

    num_forwards: int

    def result(self, step_id: int) -> StepResult: ...


class SampledPart:
    """One forward, with whatever its rows asked for."""

    num_forwards = 1

    def __init__(
        self,
        device: Device,
        layout: BatchLayout,
        sampled: SampleOutput | NoSample,
        observations: Sequence[Observation] = (),
        reports: Mapping[str, Report] = NO_REPORTS,
    ) -> None:
        self._layout = layout
        self._sampled = sampled
        self._observations = observations
        self._reports = reports
        self._tensors = [each.tensors() for each in (sampled, *observations, *reports.values())]
        self._transfer = device.download([tensor for group in self._tensors for tensor in group])

    def result(self, step_id: int) -> StepResult:
        arrays_np = iter(self._transfer.wait())
        first, *rest = [[next(arrays_np) for _ in group] for group in self._tensors]
        lines_np, logprobs, failures = self._sampled.unpack(first)
        rows, num_verified_np = self._layout.line_rows_np.tolist(), _num_verified(self._layout, lines_np[None])
        lines_np, errors = _failed(rows, lines_np, failures)
        outputs: list[tuple[int, RowOutput]] = [(rows[i], logprobs[i]) for i in sorted(logprobs) if lines_np[i] >= 0]
        for observation, group_np in zip(self._observations, rest, strict=False):
            outputs += observation.unpack(group_np).items()
        tokens_np = self._layout.by_row(np.maximum(lines_np[None], NO_TOKEN), NO_TOKEN, self._layout.width)
        return StepResult(step_id, tokens_np, num_verified_np, outputs, errors, self._payloads(rest))

    def _payloads(self, arrays_np: list[list[np.ndarray]]) -> ResultPayloads:
        of_reports = arrays_np[len(self._observations) :]
        found = ((name, report.unpack(group)) for (name, report), group in zip(self._reports.items(), of_reports))
        return ResultPayloads((name, payload) for name, payload in found if payload)


@dataclass(frozen=True, slots=True)
class DrawnLines:
    """On their way to the host: what was committed at the lines of some forwards [m, L] int32."""

    layout: BatchLayout
    transfer: Transfer
    num_forwards: int


class DrawnPart:
    """Some forwards whose rows wanted tokens and nothing else."""

    def __init__(self, drawn: Sequence[DrawnLines], width: int) -> None:
        """width: lines of a row, drafts that did not exist included"""
        self.num_forwards = sum(lines.num_forwards for lines in drawn)
        self._drawn = drawn
        self._width = width

    def result(self, step_id: int) -> StepResult:
        tokens, drafts = [], []
        for drawn in self._drawn:
            (lines_np,) = drawn.transfer.wait()
            tokens.append(drawn.layout.by_row(lines_np, NO_TOKEN, self._width))
            drafts.append(_num_verified(drawn.layout, lines_np))
        tokens_np = np.concatenate(tokens)
        rows_np = self._drawn[0].layout.sampling_np
        failed_np = (tokens_np == FAILED).any(axis=(0, 2))
        errors = dict.fromkeys(rows_np[failed_np].tolist(), BAD_MODEL) if failed_np.any() else {}
        return StepResult(step_id, np.maximum(tokens_np, NO_TOKEN), np.concatenate(drafts), errors=errors)


def _num_verified(layout: BatchLayout, lines_np: IntArray) -> IntArray:
    """What was committed at lines [m, L] -> drafts that each row had [m, S]"""
    if layout.width == 1:
        return np.zeros((len(lines_np), len(layout.sampling_np)), dtype=np.int32)
    by_row_np = layout.by_row(lines_np, NO_DRAFT, layout.width)
    return (by_row_np != NO_DRAFT).sum(axis=2, dtype=np.int32) - 1


def _failed(
    rows: list[int], lines_np: IntArray, failures: Mapping[int, Failure]
) -> tuple[IntArray, dict[int, Failure]]:
    """rows and lines [L]; failures by line -> lines without what their rows got from the first failure on, and the
    failures by row. What failed where a row never came, fails no request."""
    came_to = [line for line in sorted(failures) if lines_np[line] >= 0 or lines_np[line] == FAILED]
    if not came_to:
        return lines_np, {}
    errors: dict[int, Failure] = {}
    lines_np, rows_np = lines_np.copy(), np.array(rows)
    for line in came_to:
        errors.setdefault(rows[line], failures[line])
        lines_np[line:][rows_np[line:] == rows[line]] = NO_TOKEN
    return lines_np, errors

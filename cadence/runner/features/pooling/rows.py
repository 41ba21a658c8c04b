"""Rows whose hidden states are wanted: collected while their prompts are computed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from cadence.core.contract.step import NewRow, PooledOutput
from cadence.core.pooled.pooling import ALL, CLS, LAST, MEAN, POOLING, STEP, PoolingSpec
from cadence.device.base import Device
from cadence.kernels.interface.ops import Ops
from cadence.models.interface.model import ForwardContext, PoolHead
from cadence.runner.feature import DeviceFeature
from cadence.runner.features.pooling.finish import finished, finished_each
from cadence.runner.features.pooling.pairs import PairRows
from cadence.runner.features.pooling.sums import means
from cadence.sample.prompt_slice import PromptSlice

_NO_TAGS_NP = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class PooledRow:
    """A request in its row."""

    spec: PoolingSpec
    length: int  # tokens of its prompt
    tags_np: npt.NDArray[np.int64]  # [tags] positions of the tokens after its steps


@dataclass(frozen=True, slots=True)
class Run:
    """Tokens of one row in a forward."""

    row: int
    asked: PooledRow
    first: int  # position of the first
    hidden: int  # where its hidden state lies
    count: int

    @property
    def is_first(self) -> bool:
        return self.first == 0

    @property
    def is_last(self) -> bool:
        return self.first + self.count == self.asked.length

    @property
    def is_whole(self) -> bool:
        return self.first == 0 and self.count == self.asked.length

    @property
    def ends_by_token(self) -> bool:
        return self.is_last and self.asked.spec.by_token

    @property
    def places(self) -> Sequence[int]:
        """Where the hidden states lie that are wanted as they are."""
        pooling, at = self.asked.spec.pooling, self.hidden
        if pooling == ALL:
            return range(at, at + self.count)
        if pooling == STEP:
            tags_np = self.asked.tags_np - self.first
            places: list[int] = (at + tags_np[(tags_np >= 0) & (tags_np < self.count)]).tolist()
            return places
        if pooling == LAST and self.is_last:
            return (at + self.count - 1,)
        return (at,) if pooling == CLS and self.is_whole else ()


@dataclass(frozen=True, slots=True)
class Pooled:
    """Vectors of one run, after a head."""

    run: Run
    count: int

    def output(self, values_np: np.ndarray) -> PooledOutput:
        spec = self.run.asked.spec
        values_np = finished(values_np, spec)
        return PooledOutput(self.run.first, values_np if spec.by_token else values_np[0], self.run.is_last)


@dataclass(frozen=True, slots=True)
class PooledVectors:
    """An `Observation`: what heads gave, of one or more each."""

    by_head: Sequence[tuple[Sequence[Pooled], torch.Tensor]]  # (whose, [n, entries] float32)

    def tensors(self) -> list[torch.Tensor]:
        return [values for _, values in self.by_head]

    def unpack(self, arrays_np: list[np.ndarray]) -> dict[int, PooledOutput]:
        outputs: dict[int, PooledOutput] = {}
        for (pooled, _), values_np in zip(self.by_head, arrays_np, strict=True):
            if _are_alike(pooled):
                made_np = finished_each(values_np, pooled[0].run.asked.spec)
                outputs |= {
                    each.run.row: PooledOutput(each.run.first, vector_np, True)
                    for each, vector_np in zip(pooled, made_np, strict=True)
                }
                continue
            start = 0
            for each in pooled:
                outputs[each.run.row] = each.output(values_np[start : start + each.count])
                start += each.count
        return outputs


def _are_alike(pooled: Sequence[Pooled]) -> bool:
    """Whether each is a request's one vector, and all are finished in the same way."""
    spec = pooled[0].run.asked.spec if pooled else None
    if spec is None or spec.by_token:
        return False
    for each in pooled:
        other = each.run.asked.spec
        if other is not spec and other != spec:
            return False
    return True


class PooledRows:
    """A `RequestTable` and a `HiddenHook`. Of a prompt that several forwards compute, what is needed of the earlier
    ones lies in two tables, made when the first such prompt comes."""

    def __init__(self, device: Device, num_rows: int, heads: Mapping[str, PoolHead]) -> None:
        self._device = device
        self._heads = heads
        self._rows: dict[int, PooledRow] = {}
        self._is_active_np = np.zeros(num_rows, dtype=np.bool_)
        self._firsts = torch.zeros(0)  # [num_rows, H]: the hidden state of the first token
        self._sums = torch.zeros(0, dtype=torch.int64)  # [num_rows, H + 1]: as `sums` has them

    def add(self, row: int, request: NewRow) -> None:
        spec: PoolingSpec | None = request.payloads.get(POOLING)
        if spec is None:
            return
        tags_np = np.flatnonzero(request.token_ids_np == spec.step_tag) if spec.pooling == STEP else _NO_TAGS_NP
        self._rows[row] = PooledRow(spec, request.prompt_len, tags_np)
        self._is_active_np[row] = True

    def remove(self, row: int) -> None:
        self._is_active_np[row] = False
        self._rows.pop(row, None)

    def flush(self) -> None:
        """Everything lies on the host."""

    def active(self, rows_np: np.ndarray) -> bool:
        return bool(self._is_active_np[rows_np].any())

    def pass_over(self, step: PromptSlice) -> None:
        """The last stage pools."""

    def collect(
        self, hidden: torch.Tensor, step: PromptSlice, ctx: ForwardContext, logits_fn: Callable
    ) -> PooledVectors:
        runs = self._runs(step)
        by_head = []
        for name, head in self._heads.items():
            if own := [run for run in runs if run.asked.spec.head == name]:
                pooled, x = self._vectors(hidden, own, ctx.ops)
                by_head.append((pooled, head(x, ctx).float()))
        return PooledVectors(by_head)

    def _runs(self, step: PromptSlice) -> list[Run]:
        at_np = np.flatnonzero(self._is_active_np[step.rows_np])
        starts_np, ends_np = step.query_start_np[at_np], step.query_start_np[at_np + 1]
        columns = (step.rows_np[at_np], step.num_computed_np[at_np], starts_np, ends_np - starts_np)
        places = zip(*(column.tolist() for column in columns), strict=True)
        return [Run(row, self._rows[row], first, start, count) for row, first, start, count in places]

    def _vectors(self, hidden: torch.Tensor, runs: list[Run], ops: Ops) -> tuple[list[Pooled], torch.Tensor]:
        """-> whose, and [n, H] in that order"""
        found = []
        if picked := [run for run in runs if run.asked.spec.pooling != MEAN]:
            found.append(self._picked(hidden, picked))
        if averaged := [run for run in runs if run.asked.spec.pooling == MEAN]:
            found.append(self._averaged(hidden, averaged, ops))
        if cut := [run for run in runs if run.asked.spec.pooling == CLS and not run.is_whole]:
            found.append(self._kept_firsts(hidden, cut))
        return [each for pooled, _ in found for each in pooled], torch.cat([x for _, x in found])

    def _picked(self, hidden: torch.Tensor, runs: list[Run]) -> tuple[list[Pooled], torch.Tensor]:
        """Hidden states as they are."""
        places = [(run, run.places) for run in runs]
        wanted = [(run, each) for run, each in places if each or run.ends_by_token]
        at_np = np.array([at for _, each in wanted for at in each], dtype=np.int64)
        return [Pooled(run, len(each)) for run, each in wanted], hidden[self._device.upload(at_np)]

    def _averaged(self, hidden: torch.Tensor, runs: list[Run], ops: Ops) -> tuple[list[Pooled], torch.Tensor]:
        segments_np = np.full(hidden.shape[0], len(runs), dtype=np.int64)  # the last: what is not wanted
        for number, run in enumerate(runs):
            segments_np[run.hidden : run.hidden + run.count] = number
        sums = ops.token_sums(hidden, self._device.upload(segments_np), len(runs) + 1)[:-1]
        ended = runs
        if not all(run.is_whole for run in runs):
            self._sums = self._table(self._sums, sums.shape[1], torch.int64)
            sums = self._with_earlier(sums, runs)
            ended_np = np.flatnonzero([run.is_last for run in runs])
            sums, ended = sums[self._device.upload(ended_np)], [runs[at] for at in ended_np]
        counts = self._device.upload(np.array([run.asked.length for run in ended], dtype=np.int64))
        return [Pooled(run, 1) for run in ended], means(sums, counts).to(hidden.dtype)

    def _with_earlier(self, sums: torch.Tensor, runs: list[Run]) -> torch.Tensor:
        """sums [n, H + 1] of this forward -> of all so far, which are kept"""
        rows = self._device.upload(np.array([run.row for run in runs], dtype=np.int64))
        goes_on = self._device.upload(np.array([not run.is_first for run in runs], dtype=np.int64))
        sums = sums + self._sums[rows] * goes_on[:, None]
        self._sums[rows] = sums
        return sums

    def _kept_firsts(self, hidden: torch.Tensor, runs: list[Run]) -> tuple[list[Pooled], torch.Tensor]:
        self._firsts = self._table(self._firsts, hidden.shape[1], hidden.dtype)
        begun, ended = [run for run in runs if run.is_first], [run for run in runs if run.is_last]
        rows, places = [run.row for run in begun], [run.hidden for run in begun]
        at = self._device.upload(np.array([rows, places], dtype=np.int64))
        self._firsts[at[0]] = hidden[at[1]]
        ended_at = self._device.upload(np.array([run.row for run in ended], dtype=np.int64))
        return [Pooled(run, 1) for run in ended], self._firsts[ended_at]

    def _table(self, table: torch.Tensor, width: int, dtype: torch.dtype) -> torch.Tensor:
        return table if len(table) else self._device.zeros((len(self._is_active_np), width), dtype)


class DevicePooling(DeviceFeature):
    name = POOLING

    def __init__(self, rows: PooledRows, pairs: PairRows) -> None:
        self.tables = [rows, pairs]
        self.hooks = [rows]
        self.inputs = [pairs]

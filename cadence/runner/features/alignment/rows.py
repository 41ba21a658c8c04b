"""Rows that ask where their tokens look: the queries of their prompts are kept while these are computed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from cadence.core.contract.step import NewRow, PooledOutput
from cadence.core.inputs.alignment import ALIGNMENT, AlignmentSpec
from cadence.core.inputs.encoder_input import ENCODER
from cadence.kernels.interface.collectives import Collectives
from cadence.kernels.interface.links import StageLinks
from cadence.kernels.interface.row_ops import StepBatch
from cadence.models.interface.cross_queries import CrossHeads, KeptCrossQueries
from cadence.models.interface.model import ForwardContext, LayerCache
from cadence.runner.feature import DeviceFeature
from cadence.runner.features.alignment.weights import AlignmentHeads, RowKeys
from cadence.runner.layout import BatchLayout
from cadence.sample.prompt_slice import PromptSlice

Queries = dict[int, torch.Tensor]  # by layer of the KV cache [n, Hq, D]


@dataclass(slots=True)
class AlignedRow:
    """A request in its row."""

    spec: AlignmentSpec
    length: int  # tokens of its prompt
    source_len: int  # positions of its encoder's output
    parts: list[Queries] = field(default_factory=list)  # of the tokens asked about, as far as they are computed

    @property
    def size(self) -> tuple[int, int]:
        """Of its matrix."""
        return self.length - self.spec.first, self.spec.positions

    def queries(self) -> Queries:
        return {layer: torch.cat([part[layer] for part in self.parts]) for layer in self.parts[0]}


@dataclass(frozen=True, slots=True)
class AlignedMatrices:
    """An `Observation`, of rows whose last token was computed."""

    by_row: Mapping[int, torch.Tensor]  # [tokens, positions] float32

    def tensors(self) -> list[torch.Tensor]:
        return list(self.by_row.values())

    def unpack(self, arrays_np: list[np.ndarray]) -> dict[int, PooledOutput]:
        rows = zip(self.by_row, arrays_np, strict=True)
        return {row: PooledOutput(0, matrix_np, is_last=True) for row, matrix_np in rows}


class AlignedRows:
    """A `RequestTable`, an `InputHook` and a `HiddenHook`."""

    name = ALIGNMENT

    def __init__(
        self,
        num_rows: int,
        layers: Mapping[int, CrossHeads],
        tables: Sequence[torch.Tensor],
        ranks: Collectives,
        links: StageLinks,
    ) -> None:
        """layers: of the decoder, those that are here; tables: of the KV cache, per group [num_rows, blocks] int32;
        links: to the stages that have the others"""
        self._layers = layers
        self._tables = tables
        self._links = links
        self._heads = AlignmentHeads(layers, (), ranks)
        self._kept = KeptCrossQueries()
        self._rows: dict[int, AlignedRow] = {}
        self._is_active_np = np.zeros(num_rows, dtype=np.bool_)

    def use_caches(self, caches: Sequence[LayerCache]) -> None:
        self._heads = replace(self._heads, caches=caches)

    def add(self, row: int, request: NewRow) -> None:
        spec: AlignmentSpec | None = request.payloads.get(ALIGNMENT)
        if spec is not None:
            self._rows[row] = AlignedRow(spec, request.prompt_len, request.payloads[ENCODER])
            self._is_active_np[row] = True
            self._want()

    def remove(self, row: int) -> None:
        self._is_active_np[row] = False
        if self._rows.pop(row, None) is not None:
            self._want()

    def _want(self) -> None:
        asked = {layer for row in self._rows.values() for layer, _ in row.spec.heads}
        self._kept.want(self._layers[layer].layer for layer in asked & self._layers.keys())

    def flush(self) -> None:
        """Everything lies on the host."""

    def joins(self, layout: BatchLayout) -> bool:
        return self.active(layout.rows_np)

    def active(self, rows_np: np.ndarray) -> bool:
        return bool(self._is_active_np[rows_np].any())

    def extend(self, ctx: ForwardContext, batch: StepBatch) -> ForwardContext:
        return replace(ctx, cross_queries=self._kept)

    def pass_over(self, step: PromptSlice) -> None:
        """What the heads so far add up to goes on to the next stage."""
        for total in self._sums(step).values():
            self._links.send(total)

    def collect(
        self, hidden: torch.Tensor, step: PromptSlice, ctx: ForwardContext, logits_fn: Callable
    ) -> AlignedMatrices:
        sums = self._sums(step)
        return AlignedMatrices({row: total / len(self._rows[row].spec.heads) for row, total in sums.items()})

    def _sums(self, step: PromptSlice) -> dict[int, torch.Tensor]:
        """By row whose last token was computed [tokens, positions] float32: over the heads of this stage and of those
        before it"""
        queries, ended = self._kept.take(), dict[int, torch.Tensor]()
        for at in np.flatnonzero(self._is_active_np[step.rows_np]).tolist():
            row, (start, end) = int(step.rows_np[at]), step.query_start_np[at : at + 2].tolist()
            asked, first = self._rows[row], int(step.num_computed_np[at])
            start_asked = min(start + max(asked.spec.first - first, 0), end)
            is_last = first + end - start == asked.length
            asked.parts.append({layer: self._part(q[start_asked:end], is_last) for layer, q in queries.items()})
            if is_last:
                keys = RowKeys(self._tables, row, asked.source_len)
                ended[row] = self._heads.add(self._before(asked), asked.spec.heads, asked.queries(), keys)
                asked.parts.clear()
        return ended

    def _before(self, asked: AlignedRow) -> torch.Tensor:
        """The sum over the heads of the stages before."""
        if self._links.stage:
            return self._links.receive(asked.size, torch.float32).clone()
        return torch.zeros(asked.size, device=self._tables[0].device)

    def _part(self, q: torch.Tensor, is_last: bool) -> torch.Tensor:
        """What is kept for a later forward does not keep those of other rows."""
        return q if is_last else q.clone()


class DeviceAlignment(DeviceFeature):
    name = ALIGNMENT

    def __init__(self, rows: AlignedRows) -> None:
        self.tables = self.inputs = self.hooks = [rows]
        self._rows = rows

    def use_caches(self, caches: Sequence[LayerCache]) -> None:
        self._rows.use_caches(caches)

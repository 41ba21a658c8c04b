"""Where rows stand, of a model whose positions have axes: found by the device, whichever rows are in the places of a
forward that was recorded."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from cadence.core.contract.media_work import RopeRow
from cadence.core.contract.step import NewRow, RowPayloads
from cadence.core.inputs.media import MEDIA, MOST_SEGMENTS, SEGMENT
from cadence.core.sampling_params import SamplingParams
from cadence.device.cpu import CpuDevice
from cadence.kernels.cpu.ops import CpuOps
from cadence.kernels.interface.attention_batch import Sees
from cadence.kernels.interface.ops import Rotation
from cadence.kernels.interface.rope_ops import AxesTable
from cadence.kernels.interface.row_ops import StepBatch
from cadence.models.interface.model import ForwardContext
from cadence.runner.features.media.rope import RopeTable, RopeTurns

pytestmark = pytest.mark.device

LENGTH = 64
COS_SIN = torch.arange(LENGTH * 6, dtype=torch.float32).view(LENGTH, 6)
PICTURE = [(0, 0, 0, 0, 0), (2, 2, 2, 2, 2), (6, 4, 4, 4, 0)]
PLACES = {  # of the tokens of a row with the picture; (p, p, p) of others
    1: (1, 1, 1), 2: (2, 2, 2), 3: (2, 2, 3), 4: (2, 3, 2), 5: (2, 3, 3), 6: (4, 4, 4), 7: (5, 5, 5),
}  # fmt: skip


def row_of(row: int, segments: list[tuple[int, ...]] | None) -> NewRow:
    payloads = RowPayloads() if segments is None else RowPayloads({MEDIA: RopeRow(np.array(segments, dtype=np.int32))})
    tokens_np = np.zeros(8, dtype=np.int32)
    sampling = SamplingParams(max_tokens=4)
    return NewRow(row, f"r{row}", tokens_np, 8, 0, (), sampling, 0, frozenset(), 12, payloads)


def line_of(t: int, h: int, w: int) -> list[float]:
    axes = (t, h, w)
    return [float(COS_SIN[axes[j % 3], j]) for j in range(6)]


def test_rows_are_found_anew_by_what_was_recorded() -> None:
    device = CpuDevice(1)
    ops = CpuOps(device.calls)
    axes = AxesTable(COS_SIN, torch.arange(3, dtype=torch.int32))
    table = RopeTable(device, 4)
    turns = RopeTurns(device, ops, table.segments, axes, most_tokens=16)
    none = torch.empty(0, dtype=torch.int32)
    rows, positions = torch.tensor([2, 1], dtype=torch.int32), torch.tensor([2, 3, 4, 7])
    start = torch.tensor([0, 3, 4], dtype=torch.int32)
    batch = StepBatch(rows, start, none, torch.zeros(4), positions, (), none, none, none, none, 0, 3)  # type: ignore[arg-type]
    ctx = ForwardContext(ops, batch.attention((), Sees.CAUSAL), ())

    def places(wanted: list[tuple[int, int, int]], extended: ForwardContext) -> None:
        rotation, lines = extended.rope.turning(Rotation(COS_SIN), positions)
        assert rotation.cos_sin[lines].tolist() == [line_of(*place) for place in wanted]

    table.add(2, row_of(2, PICTURE))
    table.add(1, row_of(1, None))
    table.flush()
    graph, extended = device.record(lambda: turns.extend(ctx, batch))
    places([PLACES[2], PLACES[3], PLACES[4], (7, 7, 7)], extended)
    table.remove(2)
    table.add(2, row_of(2, None))
    table.add(1, row_of(1, PICTURE))
    table.flush()
    places([(2, 2, 2), (3, 3, 3), (4, 4, 4), PLACES[7]], graph.replay(lambda: turns.extend(ctx, batch)))
    table.remove(1)
    table.flush()
    positions.copy_(torch.tensor([5, 6, 7, 5]))
    places([(5, 5, 5), (6, 6, 6), (7, 7, 7), (5, 5, 5)], graph.replay(lambda: turns.extend(ctx, batch)))


def test_a_row_may_have_as_many_segments_as_a_prompt() -> None:
    device = CpuDevice(1)
    table = RopeTable(device, 2)
    segments = np.arange(MOST_SEGMENTS * SEGMENT).reshape(-1, SEGMENT)
    table.add(1, row_of(1, segments.tolist()))
    table.flush()
    assert table.segments.lines[1].tolist() == segments.tolist()
    assert table.segments.counts.tolist() == [0, MOST_SEGMENTS]

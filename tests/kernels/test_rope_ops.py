"""Positions with axes: every implementation gives the bits that the segments of a row say."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers.triton_mode import DEVICE, interpreted_examples  # isort: skip - before anything that imports triton

from cadence.core.inputs.media import SEGMENT
from cadence.device.calls import Calls
from cadence.kernels.cpu.rope import CpuRopeOps
from cadence.kernels.cpu.runtime.library import CpuLibrary
from cadence.kernels.interface.rope_ops import AxesTable, RopeOps, RopeSegments
from cadence.kernels.interface.row_ops import StepBatch
from cadence.kernels.reference.rope import ReferenceRopeOps
from cadence.kernels.triton.rows.rope import TritonRopeOps
from tests.helpers.wide import examples

pytestmark = pytest.mark.device

LENGTH, MOST = 90, 7
AXES = [0, 0, 1, 2, 1, 0]  # of each of a token's cosines
Segment = tuple[int, int, int, int, int]
Run = tuple[list[Segment], int, int]  # segments of its row, first position, tokens


@cache
def implementations() -> dict[str, tuple[RopeOps, str]]:
    return {
        "reference": (ReferenceRopeOps(), "cpu"),
        "cpu": (CpuRopeOps(CpuLibrary(Calls(2))), "cpu"),
        "triton": (TritonRopeOps(), DEVICE),
    }


def stands(segments: list[Segment], position: int) -> list[int]:
    """Token by token, from the first of the segment on."""
    begun = [segment for segment in segments if segment[0] <= position]
    first, *place, width = begun[-1] if begun else (0, 0, 0, 0, 0)
    for _ in range(first, position):
        place = [place[0], place[1], place[2] + 1] if width else [axis + 1 for axis in place]
        if width and place[2] == begun[-1][3] + width:
            place = [place[0], place[1] + 1, begun[-1][3]]
    return [max(0, min(axis, LENGTH - 1)) for axis in place]


def check(runs: list[Run], padding: int, names: tuple[str, ...]) -> None:
    """Rows stand in the table in the opposite order; what is left of it would be far away."""
    num_rows = len(runs) + 1
    lines = torch.full((num_rows, MOST, SEGMENT), 77, dtype=torch.int32)
    columns = torch.zeros((num_rows, 3), dtype=torch.int32)
    for run, (segments, _, _) in enumerate(runs):
        columns[num_rows - 1 - run, 1] = len(segments)
        for index, segment in enumerate(segments):
            lines[num_rows - 1 - run, index] = torch.tensor(segment)
    start = torch.tensor([0, *(count for _, _, count in runs)]).cumsum(0).int()
    positions = torch.tensor([first + i for _, first, count in runs for i in range(count)] + [0] * padding).long()
    wanted = [stands(segments, first + i) for segments, first, count in runs for i in range(count)]
    wanted += [[0, 0, 0]] * padding
    table = torch.arange(LENGTH * 2 * len(AXES), dtype=torch.float32).view(LENGTH, -1)
    at = torch.tensor(wanted).view(-1, 3)[:, AXES]
    expected = table.gather(0, torch.cat([at, at], dim=1))
    for name in names:
        ops, device = implementations()[name]
        rows = torch.arange(num_rows - 1, 0, -1, dtype=torch.int32, device=device)
        none = torch.empty(0, dtype=torch.int32, device=device)
        ids = torch.zeros(len(positions), dtype=torch.int32, device=device)
        places = start.to(device), none, ids, positions.to(device)
        batch = StepBatch(rows, *places, (), none, none, none, none, 0, 1)
        out = torch.full((len(positions), 2 * len(AXES)), -7.0, device=device)
        axes = AxesTable(table.to(device), torch.tensor(AXES, dtype=torch.int32, device=device))
        ops.turns(RopeSegments(lines.to(device), columns.to(device)[:, 1]), batch, axes, out)
        assert torch.equal(out.cpu(), expected), name


def test_text_pictures_and_what_follows() -> None:
    picture = [(0, 0, 0, 0, 0), (4, 4, 4, 4, 3), (10, 7, 7, 7, 0)]  # 2 lines of 3
    assert [stands(picture, at) for at in (3, 4, 6, 7, 9, 10, 12)] == [
        [3, 3, 3], [4, 4, 4], [4, 4, 6], [4, 5, 4], [4, 5, 6], [7, 7, 7], [9, 9, 9],
    ]  # fmt: skip
    runs: list[Run] = [(picture, 0, 14), ([], 5, 3), (picture, 30, 1), (picture, 200, 1), ([(3, 1, 1, 1, 2)], 0, 7)]
    check(runs, 0, tuple(implementations()))
    check(runs, 5, tuple(implementations()))


@st.composite
def some_runs(draw: st.DrawFn) -> list[Run]:
    runs: list[Run] = []
    for _ in range(draw(st.integers(1, 4))):
        firsts = sorted(draw(st.sets(st.integers(0, 60), max_size=MOST)))
        number = st.integers(0, LENGTH + 3)
        segments = [(first, *draw(st.tuples(number, number, number, st.integers(0, 6)))) for first in firsts]
        runs.append((segments, draw(st.integers(0, 70)), draw(st.integers(0, 20))))
    return runs


@examples(100, 500)
@given(runs=some_runs(), padding=st.integers(0, 3))
def test_tokens_stand_where_segments_say(runs: list[Run], padding: int) -> None:
    check(runs, padding, ("reference", "cpu"))


@interpreted_examples(6, 40)
@given(runs=some_runs(), padding=st.integers(0, 3))
def test_triton_too(runs: list[Run], padding: int) -> None:
    check(runs, padding, ("triton",))

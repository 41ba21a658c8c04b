"""When a forward, or a burst of them, is recorded, and in which shape. Needs no GPU."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from cadence.core.contract.step import NO_PLAN, StepPlan
from cadence.runner.graphs import StepGraphs, StepOutputs
from cadence.runner.layout import BatchLayout, decode_layout
from cadence.runner.shapes import (
    _WORTH_RECORDING,
    PROMPT_ROWS,
    ExactShapes,
    HookedInputs,
    PaddedShapes,
    StepShape,
    Until,
    decode_shape,
    shape_of,
)

pytestmark = pytest.mark.device


def decode(num_rows: int) -> BatchLayout:
    return decode_layout(np.arange(num_rows, dtype=np.int32), 1)


def prompts(counts: list[int]) -> BatchLayout:
    """All of which sample."""
    rows_np = np.arange(len(counts), dtype=np.int32)
    counts_np = np.asarray(counts, dtype=np.int32)
    return BatchLayout.of(
        StepPlan(0, [], [], [], rows_np, counts_np, rows_np * 0, np.ones(len(counts), dtype=np.int32))
    )


def test_bursts_are_recorded_as_a_whole_only_when_met_for_a_while() -> None:
    shapes = PaddedShapes(set(), max_num_seqs=256, max_num_tokens=512, most_forwards=8)
    early = [shapes.shape(decode(5), Until.TOKENS, 8) for _ in range(_WORTH_RECORDING - 1)]
    assert set(early) == {decode_shape(8, 1, True)}
    assert shapes.shape(decode(7), Until.TOKENS, 8) == decode_shape(8, 8, True), "5 and 7 rows share a shape"
    assert shapes.shape(decode(7), Until.TOKENS, 4).num_forwards == 1, "a part of a burst goes forward by forward"
    assert shapes.shape(decode(7), Until.LOGITS, 8).num_forwards == 1, "the host has a say after each forward"
    for _ in range(2 * _WORTH_RECORDING):
        assert shapes.shape(decode(65), Until.TOKENS, 8) == decode_shape(80, 1, True), "a launch is cheap beside these"


def test_short_prompts_are_padded_and_long_ones_run_as_they_are() -> None:
    shapes = PaddedShapes(set(), max_num_seqs=4, max_num_tokens=4096, most_forwards=1)
    small = shapes.shape(prompts([1, 60]), Until.TOKENS, 1)
    assert small == StepShape(PROMPT_ROWS, 64, PROMPT_ROWS, 0, 64, Until.HIDDEN, recorded=True)
    assert shapes.most_rows >= small.num_rows and shapes.most_tokens >= 4096
    for layout in (prompts([1, 600]), prompts([1] * 5 + [7]), prompts([2] * 17)):
        assert shapes.shape(layout, Until.TOKENS, 1) == shape_of(layout, Until.TOKENS)
    watched = shapes.shape(decode(1), Until.HIDDEN, 1)
    assert watched.until is Until.HIDDEN and watched.num_tokens == 32, "a decode that a hook looks at"


def test_what_leaves_more_behind_than_a_recording_does_runs_as_it_is() -> None:
    shapes = PaddedShapes(set(), 4, max_num_tokens=4096, most_forwards=1, inputs=HookedInputs(never=("seen",)))
    for layout, until in ((prompts([1, 60]), Until.HIDDEN), (decode(1), Until.TOKENS)):
        seen = replace(layout, inputs=("other", "seen"))
        assert shapes.shape(layout, until, 1).recorded
        assert shapes.shape(seen, until, 1) == shape_of(seen, until)


@pytest.mark.parametrize("recorded", [False, True])
def test_without_padding_decodes_alone_are_recorded(recorded: bool) -> None:
    shapes = ExactShapes(16, 64, recorded)
    assert shapes.shape(decode(5), Until.TOKENS, 8).recorded is recorded
    assert shapes.shape(decode(5), Until.TOKENS, 8).num_rows == 5
    for layout, until in ((prompts([1, 3]), Until.TOKENS), (decode(3), Until.HIDDEN), (prompts([4]), Until.KEYS)):
        assert shapes.shape(layout, until, 1) == shape_of(layout, until)


def test_a_layout_says_who_computes_what() -> None:
    rows_np = np.array([7, 3, 5], dtype=np.int32)
    counts_np, computed_np = np.array([1, 4, 2], dtype=np.int32), np.array([9, 0, 30], dtype=np.int32)
    plan = StepPlan(1, [], [], [], rows_np, counts_np, computed_np, np.array([1, 0, 1], dtype=np.int32))
    layout = BatchLayout.of(plan)
    assert (layout.num_rows, layout.num_tokens, layout.num_lines) == (3, 7, 2)
    assert (layout.num_single, layout.max_query_len, layout.is_decode) == (1, 4, False)
    assert layout.query_start_np.tolist() == [0, 1, 5, 7] and layout.line_start_np.tolist() == [0, 1, 1, 2]
    after = layout.following(1)
    assert after.rows_np.tolist() == after.line_rows_np.tolist() == [7, 5] and after.is_decode
    assert after.following(1) is after
    assert BatchLayout.of(NO_PLAN).num_rows == 0


def test_rows_with_drafts_have_shapes_of_their_own() -> None:
    shapes = PaddedShapes(set(), max_num_seqs=16, max_num_tokens=64, most_forwards=4, width=6)
    assert (shapes.most_lines, shapes.most_tokens) == (16 * 6, 512)
    rows_np = np.arange(3, dtype=np.int32)
    assert shapes.shape(decode_layout(rows_np, 3), Until.TOKENS, 1) == decode_shape(4, 1, True, 3)
    assert decode_shape(4, 1, True, 3) == StepShape(4, 12, 12, 0, 3, Until.TOKENS, recorded=True)
    wanted = shapes.wanted()
    assert decode_shape(4, 1, True, 6) in wanted.first and decode_shape(4, 1, True, 3) in wanted.later
    assert {shape.max_query_len for shape in wanted.later} == {2, 3, 5}


def test_a_layout_has_room_for_drafts_and_is_cut_to_those_there_are() -> None:
    rows_np = np.array([4, 2, 9], dtype=np.int32)
    counts_np, samples_np = np.array([3, 3, 7], dtype=np.int32), np.array([3, 3, 1], dtype=np.int32)
    layout = BatchLayout.of(StepPlan(1, [], [], [], rows_np, counts_np, rows_np, samples_np, width=3))
    assert (layout.num_lines, layout.width, layout.is_decode, layout.is_even) == (7, 3, False, False)
    assert layout.line_rows_np.tolist() == [4, 4, 4, 2, 2, 2, 9]
    found = layout.without_padding(np.array([1, 2, 0], dtype=np.int32))
    assert np.diff(found.query_start_np).tolist() == [2, 3, 7] and np.diff(found.line_start_np).tolist() == [2, 3, 1]
    assert found.by_row(np.arange(6, dtype=np.int32)[None], -1, 3).tolist() == [[[0, 1, -1], [2, 3, 4], [5, -1, -1]]]
    even = layout.following(3)
    assert even.is_decode and even.is_even and even.following(3) is even
    assert even.without_padding(np.array([2, 5, 2], dtype=np.int32)) is even, "more than there is room for"
    assert even.without_padding(np.zeros(3, dtype=np.int32)).num_single == 3


class Notes:
    """A device that keeps what it is given."""

    def __init__(self) -> None:
        self.recorded = 0

    def record(self, work: Any) -> Any:
        self.recorded += 1
        return self, work()

    def replay(self, work: Any) -> Any:
        return work()


def test_work_is_done_exactly_once_a_run_and_recorded_once_a_shape() -> None:
    device: Any = Notes()
    graphs = StepGraphs(device)
    done = []

    def work() -> StepOutputs:
        done.append(1)
        return StepOutputs(torch.zeros(0), torch.zeros(0))

    shape, eager = decode_shape(4, 1, True), shape_of(prompts([3]), Until.TOKENS)
    for _ in range(3):
        graphs.run(shape, work)
        graphs.run(eager, work)
    assert len(done) == 6 and device.recorded == 1
    assert shape in graphs and eager not in graphs
    graphs.forget()
    assert shape not in graphs

"""What is compiled and recorded before anybody comes. Needs no GPU."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from cadence.config.args import EngineArgs
from cadence.core.contract.control import WARM_UP, WARM_UP_MORE
from cadence.core.sampling_params import SamplingParams
from cadence.engine.source import find_source
from cadence.executor.factory import open_executor
from cadence.executor.worker.worker import Worker
from cadence.runner.layout import decode_layout
from cadence.runner.limits import RunnerLimits
from cadence.runner.profile import largest_step
from cadence.runner.shapes import PaddedShapes, StepShape, Until, decode_shape, padded_sizes
from cadence.runner.warmup import mixed_steps, warmup_pieces

pytestmark = pytest.mark.engine

LIMITS = RunnerLimits(
    max_num_seqs=1024,
    max_model_len=4096,
    max_num_tokens=8192,
    logprobs_mode="raw_logprobs",
    graphs="padded",
    burst_steps=8,
)


@pytest.mark.parametrize("most", [1, 7, 64, 100, 256, 1000, 1024])
def test_on_the_ladder_every_number_of_rows_finds_a_recorded_size(most: int) -> None:
    known: set[StepShape] = set()
    shapes = PaddedShapes(known, most, max_num_tokens=2048, most_forwards=8)
    known.update(shapes.wanted().first)
    for num_rows in range(1, most + 1):
        for until in (Until.TOKENS, Until.LOGITS):
            shape = shapes.shape(decode_layout(np.arange(num_rows, dtype=np.int32), 1), until, 1)
            assert shape in known and num_rows <= shape.num_rows <= max(1.75 * num_rows, num_rows + 8)


def test_a_size_that_fits_better_is_used_once_it_is_recorded() -> None:
    known = {decode_shape(128, 1, True)}
    shapes = PaddedShapes(known, 256, max_num_tokens=2048, most_forwards=1)
    hundred, five = (decode_layout(np.arange(count, dtype=np.int32), 1) for count in (100, 5))
    assert shapes.shape(hundred, Until.TOKENS, 1) == decode_shape(128, 1, True)
    assert shapes.shape(hundred, Until.LOGITS, 1) == decode_shape(112, 1, False), "nothing of that kind is there yet"
    assert shapes.shape(five, Until.TOKENS, 1) == decode_shape(8, 1, True), "so few rows are not padded to so many"
    known.add(decode_shape(112, 1, True))
    assert shapes.shape(hundred, Until.TOKENS, 1) == decode_shape(112, 1, True)


def test_every_size_is_wanted_once() -> None:
    shapes = PaddedShapes(set(), 1024, max_num_tokens=2048, most_forwards=8)
    wanted = [*shapes.wanted().first, *shapes.wanted().later]
    assert len(wanted) == len(set(wanted))
    assert {shape.num_rows for shape in wanted if shape.num_forwards == 1} == set(padded_sizes(1024))
    assert len(shapes.wanted().later) > len(shapes.wanted().first) / 2


def test_no_step_of_the_warm_up_is_larger_than_a_step_may_be() -> None:
    for limits in (LIMITS, RunnerLimits(4, 64, 48, "raw_logprobs", "padded", 1)):
        for counts in mixed_steps(limits):
            assert (
                sum(counts) <= limits.max_num_tokens
                and len(counts) <= limits.max_num_seqs
                and max(counts) <= limits.max_model_len
            )


@pytest.fixture(scope="module")
def worker(tiny_model: Callable[[str], Path]) -> Worker:
    args = EngineArgs(model=str(tiny_model("llama")), dtype="float32", max_num_seqs=40, max_num_batched_tokens=1024)
    executor = open_executor("cpu", lambda caps: find_source(args).resolve(args, caps), ()).executor
    assert isinstance(executor, Worker)
    return executor


def test_every_step_of_the_warm_up_runs_on_the_dummy_row(worker: Worker) -> None:
    steps = mixed_steps(worker._limits)
    assert len(steps) > 10
    for counts in steps:
        worker.run_dummy(counts, SamplingParams(temperature=0.0))


def test_on_a_cpu_there_is_nothing_to_warm_up(worker: Worker) -> None:
    assert not warmup_pieces(worker.run_dummy, worker._loop, worker._limits)
    worker.call(WARM_UP, "full")
    assert not worker.call(WARM_UP_MORE, None)


def test_the_largest_step_has_all_lines_there_can_be() -> None:
    assert largest_step(12, 10, 4) == [9, 1, 1, 1]
    assert largest_step(24, 10, 4, width=5) == [9, 5, 5, 5], "a row's drafts have lines, too"
    assert largest_step(12, 10, 4, width=5) == [7, 5], "no more rows have drafts than the step has tokens for"

"""What is compiled and captured before anybody comes. Needs no GPU: graphs are a stand-in here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from cadence.config.args import EngineArgs
from cadence.core.sampling_params import SamplingParams
from cadence.engine.build import build_engine
from cadence.executor.worker import Worker
from cadence.runner.graphs import DecodeGraphs, DecodeShape, padded_sizes
from cadence.runner.setup import RunnerLimits
from cadence.runner.warmup import mixed_steps, warmup_pieces

pytestmark = pytest.mark.engine

LIMITS = RunnerLimits(
    max_num_seqs=1024, max_model_len=4096, logprobs_mode="raw_logprobs", graphs="padded", burst_steps=8
)


class FakeDevice:
    def free_memory(self) -> int:
        return 0

    def capture(self, record: Callable[[], Any]) -> Any:
        return record()


def captured(graphs: DecodeGraphs, shapes: Sequence[DecodeShape]) -> None:
    for shape in shapes:
        graphs.capture(shape, lambda shape, longest: None)  # type: ignore[arg-type,return-value]


@pytest.mark.parametrize("most", [1, 7, 64, 100, 256, 1000, 1024])
def test_on_the_ladder_every_number_of_rows_finds_a_captured_size(most: int) -> None:
    graphs = DecodeGraphs(FakeDevice(), most, max_model_len=64, most_forwards=8)  # type: ignore[arg-type]
    captured(graphs, graphs.wanted().first)
    for num_rows in range(1, most + 1):
        for draws in (True, False):
            shape = graphs.shape(num_rows, 1, 1, draws)
            assert graphs.knows(shape) and num_rows <= shape.num_rows <= max(1.75 * num_rows, num_rows + 8)


def test_a_size_that_fits_better_is_used_once_it_is_captured() -> None:
    graphs = DecodeGraphs(FakeDevice(), 256, max_model_len=64, most_forwards=1)  # type: ignore[arg-type]
    captured(graphs, [DecodeShape(128, 1, True)])
    assert graphs.shape(100, 1, 1, True) == DecodeShape(128, 1, True)
    assert graphs.shape(100, 1, 1, False) == DecodeShape(112, 1, False), "nothing of that kind is there yet"
    assert graphs.shape(5, 1, 1, True) == DecodeShape(8, 1, True), "so few rows are not padded to so many"
    captured(graphs, [DecodeShape(112, 1, True)])
    assert graphs.shape(100, 1, 1, True) == DecodeShape(112, 1, True)


def test_every_size_is_wanted_once() -> None:
    graphs = DecodeGraphs(FakeDevice(), 1024, max_model_len=64, most_forwards=8)  # type: ignore[arg-type]
    wanted = [*graphs.wanted().first, *graphs.wanted().later]
    assert len(wanted) == len(set(wanted))
    assert {shape.num_rows for shape in wanted if shape.num_forwards == 1} == set(padded_sizes(1024))
    assert len(graphs.wanted().later) > len(graphs.wanted().first) / 2


def test_no_step_of_the_warm_up_is_larger_than_a_step_may_be() -> None:
    for limits, most in ((LIMITS, 8192), (RunnerLimits(4, 64, "raw_logprobs", "padded", 1), 48)):
        for counts in mixed_steps(limits, most):
            assert sum(counts) <= most and len(counts) <= limits.max_num_seqs and max(counts) <= limits.max_model_len


@pytest.fixture(scope="module")
def worker(tiny_model: Callable[[str], Path]) -> Worker:
    args = EngineArgs(model=str(tiny_model("llama")), dtype="float32", max_num_seqs=40, max_num_batched_tokens=1024)
    parts = build_engine(args)
    executor: Any = parts.core._executor
    assert isinstance(executor, Worker)
    return executor


def test_every_step_of_the_warm_up_runs_on_the_dummy_row(worker: Worker) -> None:
    steps = mixed_steps(worker._limits, worker._max_tokens)
    assert len(steps) > 10
    for counts in steps:
        worker.run_dummy(counts, SamplingParams(temperature=0.0))


def test_on_a_cpu_there_is_nothing_to_warm_up(worker: Worker) -> None:
    assert not warmup_pieces(worker.run_dummy, worker._decode, worker._limits, worker._max_tokens)
    worker.warm_up("full")
    assert not worker.warm_up_more()

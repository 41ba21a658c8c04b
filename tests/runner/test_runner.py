"""The runner alone, driven by hand-made plans."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cadence.config.args import EngineArgs
from cadence.config.engine_config import EngineConfig
from cadence.config.hf import load_hf_config
from cadence.config.reference import find_model
from cadence.config.resolve.resolve import resolve
from cadence.core.contract.control import ALLOCATE_KV, CONTROL, Where
from cadence.core.contract.step import NO_TOKEN, NewBlocks, NewRow, StepPlan
from cadence.core.sampling_params import SamplingParams
from cadence.device.cpu import CpuDevice
from cadence.executor.factory import device_caps, open_on
from cadence.executor.worker.worker import Worker
from cadence.runner.runner import Runner
from tests.helpers.drafted_chains import QueueingCpu

pytestmark = pytest.mark.device

BLOCK = 16
PROMPT = np.arange(5, 45, dtype=np.int32)  # 40 tokens: two blocks and a half


def config_of(directory: Path) -> EngineConfig:
    args = EngineArgs(model=str(directory), dtype="float32", max_model_len=128, max_num_seqs=4, device="cpu")
    files = find_model(args.model)
    return resolve(args, files, load_hf_config(files), device_caps("cpu"))


class CountingDevice(CpuDevice):
    """Notes the size of each upload."""

    def __init__(self) -> None:
        super().__init__()
        self.uploads: list[int] = []

    def upload(self, array_np: np.ndarray) -> torch.Tensor:
        self.uploads.append(array_np.size)
        return super().upload(array_np)


def open_worker(config: EngineConfig, device: CpuDevice | None = None) -> Worker:
    made = open_on(device or CpuDevice(), config).executor
    assert isinstance(made, Worker)
    made.call(ALLOCATE_KV, 32)
    return made


@pytest.fixture
def worker(tiny_model: Callable[[str], Path]) -> Worker:
    return open_worker(config_of(tiny_model("llama")))


def test_the_worker_knows_every_verb_and_no_other() -> None:
    assert Worker._HANDLERS.keys() == {verb.name for verb in CONTROL.values() if verb.at is Where.EXECUTOR}


def new_row(row: int, blocks: list[int], tokens: np.ndarray = PROMPT) -> NewRow:
    return NewRow(
        row=row,
        request_id=f"r{row}",
        token_ids_np=tokens,
        prompt_len=len(tokens),
        num_computed=0,
        block_ids=(blocks,),
        sampling=SamplingParams(temperature=0),
        seed=0,
        stop_token_ids=frozenset(),
        max_len=128,
    )


def plan(step_id: int, work: list[tuple[int, int, int, bool]], **changes: Any) -> StepPlan:
    """work: (row, tokens, computed before, samples)."""
    columns = np.array(work, dtype=np.int32).reshape(-1, 4)
    parts = {"ended": [], "begun": [], "blocks": [], **changes}
    return StepPlan(
        step_id=step_id,
        rows_np=columns[:, 0].copy(),
        num_tokens_np=columns[:, 1].copy(),
        num_computed_np=columns[:, 2].copy(),
        num_samples_np=columns[:, 3],
        **parts,
    )


def launch(worker: Worker, plan: StepPlan) -> None:
    """Queues all of the step."""
    worker.step(plan)
    worker.advance(plan.step_id, 0, plan.num_forwards)


def read(worker: Worker, num_forwards: int) -> list[list[int]]:
    """Tokens of each of the next forwards that were queued."""
    forwards: list[list[int]] = []
    while len(forwards) < num_forwards:
        forwards += worker.result().token_ids_np[:, :, 0].tolist()
    return forwards


class ToldTable:
    """Notes which rows it is told of."""

    def __init__(self) -> None:
        self.told: list[tuple[str, int]] = []

    def add(self, row: int, request: NewRow) -> None:
        self.told.append(("add", row))

    def remove(self, row: int) -> None:
        self.told.append(("remove", row))

    def flush(self) -> None: ...


def test_what_chooses_tokens_is_told_only_of_rows_that_sample(worker: Worker) -> None:
    every, choosing = ToldTable(), ToldTable()
    parts = worker._runner._parts
    runner = Runner(replace(parts, tables=[*parts.tables, every], choosing=[choosing]))
    runner.step(plan(1, [], begun=[replace(new_row(0, [1, 2, 3]), samples=False), new_row(1, [4, 5, 6])]))
    runner.step(plan(2, [], ended=[0, 1], begun=[new_row(0, [1, 2, 3])]))  # a row that did not sample, and does now
    runner.step(plan(3, [], ended=[0]))
    assert every.told == [("add", 0), ("add", 1), ("remove", 0), ("remove", 1), ("add", 0), ("remove", 0)]
    assert choosing.told == [("add", 1), ("remove", 1), ("add", 0), ("remove", 0)]


def run(worker: Worker, plan: StepPlan) -> list[list[int]]:
    """Tokens of each forward of the step."""
    launch(worker, plan)
    return read(worker, plan.num_forwards)


def greedy_tokens(worker: Worker, row: int, blocks: list[int], count: int, first_step: int = 1) -> list[int]:
    """Prefill and decode one row alone, reading each result before the next step."""
    tokens = []
    start = plan(first_step, [(row, len(PROMPT), 0, True)], begun=[new_row(row, blocks)])
    tokens += run(worker, start)[0]
    for index in range(count - 1):
        step = plan(first_step + 1 + index, [(row, 1, len(PROMPT) + index, True)])
        tokens += run(worker, step)[0]
    return tokens


def test_tokens_feed_the_next_step_on_the_device(worker: Worker) -> None:
    """All steps are queued before any result is read: the device must not need the host in between."""
    expected = greedy_tokens(worker, 0, [1, 2, 3, 4], 6)
    launch(worker, plan(10, [(2, 40, 0, True)], begun=[new_row(2, [9, 7, 5, 6])]))
    for index in range(5):
        launch(worker, plan(11 + index, [(2, 1, 40 + index, True)]))
    assert [tokens for (tokens,) in read(worker, 6)] == expected


def test_chunks_and_late_blocks(worker: Worker) -> None:
    expected = greedy_tokens(worker, 0, [1, 2, 3, 4], 3)
    assert run(worker, plan(10, [(1, 13, 0, False)], begun=[new_row(1, [20])])) == [[]]
    blocks = [NewBlocks(1, 0, 1, [22, 21])]
    launch(worker, plan(11, [(1, 27, 13, True)], blocks=blocks))
    launch(worker, plan(12, [(1, 1, 40, True)]))
    launch(worker, plan(13, [(1, 1, 41, True)]))
    assert [tokens for (tokens,) in read(worker, 3)] == expected


def test_a_row_is_reused_by_another_request(worker: Worker) -> None:
    expected = greedy_tokens(worker, 0, [1, 2, 3, 4], 1)
    other = np.arange(90, 110, dtype=np.int32)
    run(worker, plan(10, [(3, 20, 0, True)], begun=[new_row(3, [10, 11], other)]))
    again = run(worker, plan(11, [(3, 40, 0, True)], ended=[3], begun=[new_row(3, [12, 13, 14])]))
    assert again[0] == expected


def test_the_dummy_plan_disturbs_nobody(worker: Worker) -> None:
    """Profiling and warm-up run through the ordinary path, between two steps of a request."""
    expected = greedy_tokens(worker, 0, [1, 2, 3, 4], 4)
    tokens = run(worker, plan(10, [(1, 40, 0, True)], begun=[new_row(1, [5, 6, 7, 8])]))[0]
    for index in range(3):
        worker.run_dummy([100] + [1] * 2 + [97], SamplingParams(temperature=1.0, top_p=0.9))
        tokens += run(worker, plan(11 + index, [(1, 1, 40 + index, True)]))[0]
    assert tokens == expected


def test_a_steady_step_uploads_indices_and_nothing_else(tiny_model: Callable[[str], Path]) -> None:
    device = CountingDevice()
    worker = open_worker(config_of(tiny_model("llama")), device)
    run(worker, plan(1, [(0, 40, 0, True)], begun=[new_row(0, [1, 2, 3])]))
    device.uploads.clear()
    run(worker, plan(2, [(0, 1, 40, True)]))
    assert len(device.uploads) == 1 and device.uploads[0] <= 8


def begin_two(worker: Worker) -> None:
    """Rows 0 and 1 with prompts of 40 and 20 tokens, prefilled, in blocks that last for 20 more."""
    other = np.arange(90, 110, dtype=np.int32)
    begun = [new_row(0, [1, 2, 3, 4]), new_row(1, [5, 6, 7], other)]
    run(worker, plan(1, [(0, 40, 0, True), (1, 20, 0, True)], begun=begun))


def test_a_burst_is_its_forwards_one_by_one(worker: Worker) -> None:
    begin_two(worker)
    singles = [run(worker, plan(2 + i, [(0, 1, 40 + i, True), (1, 1, 20 + i, True)]))[0] for i in range(6)]
    begin_two(worker)
    assert run(worker, plan(30, [(0, 1, 40, True), (1, 1, 20, True)], num_forwards=6)) == singles


def test_prompts_join_a_burst_after_their_first_forward(worker: Worker) -> None:
    expected = greedy_tokens(worker, 0, [1, 2, 3, 4], 5)
    burst = plan(10, [(2, 40, 0, True)], begun=[new_row(2, [9, 7, 5, 6])], num_forwards=5)
    assert [tokens for (tokens,) in run(worker, burst)] == expected


def test_a_row_goes_quiet_with_a_stop_token_and_at_its_length(worker: Worker) -> None:
    expected = greedy_tokens(worker, 0, [1, 2, 3, 4], 6)
    stop = expected[2]
    stopping = replace(new_row(1, [5, 6, 7, 8]), stop_token_ids=frozenset({stop}))
    short = replace(new_row(2, [9, 10, 11, 12]), max_len=44)
    free = new_row(3, [13, 14, 15, 16])
    work = [(1, 40, 0, True), (2, 40, 0, True), (3, 40, 0, True)]
    burst = run(worker, plan(10, work, begun=[stopping, short, free], num_forwards=6))
    columns = list(zip(*burst, strict=True))
    first_stop = expected.index(stop) + 1
    assert list(columns[0]) == expected[:first_stop] + [NO_TOKEN] * (6 - first_stop)
    assert list(columns[1]) == [*expected[:4], NO_TOKEN, NO_TOKEN]
    assert list(columns[2]) == expected


def test_min_tokens_keeps_a_row_going(worker: Worker) -> None:
    expected = greedy_tokens(worker, 0, [1, 2, 3, 4], 4)
    # The stop token is known to the row, but the steps on logits see none, so that it is sampled all the same.
    request = replace(new_row(1, [5, 6, 7, 8]), stop_token_ids=frozenset({expected[0]}))
    run(worker, plan(10, [(1, 40, 0, True)], begun=[request]))
    assert run(worker, plan(11, [(1, 1, 40, True)])) == [[NO_TOKEN]]


def test_a_burst_is_computed_as_far_as_it_is_asked_for(worker: Worker) -> None:
    begin_two(worker)
    worker.step(plan(2, [(0, 1, 40, True), (1, 1, 20, True)], num_forwards=6))
    worker.advance(2, 0, 1)
    worker.advance(2, 1, 2)
    tokens = read(worker, 3)
    tokens += run(worker, plan(3, [(0, 1, 43, True), (1, 1, 23, True)]))
    begin_two(worker)
    assert run(worker, plan(4, [(0, 1, 40, True), (1, 1, 20, True)], num_forwards=4)) == tokens


def test_a_burst_not_yet_read_comes_before_the_next_step(worker: Worker) -> None:
    begin_two(worker)
    work = [(0, 1, 40, True), (1, 1, 20, True)]
    launch(worker, plan(2, work, num_forwards=3))
    launch(worker, plan(3, [(0, 1, 43, True), (1, 1, 23, True)]))
    tokens = read(worker, 4)
    begin_two(worker)
    assert run(worker, plan(4, work, num_forwards=4)) == tokens


def test_padded_and_captured_bursts_give_the_same_tokens(tiny_model: Callable[[str], Path]) -> None:
    """Three rows in a graph for four, a burst of eight in one launch; sampled rows and greedy ones side by side."""
    found = {}
    for graphs in ("none", "exact", "padded"):
        config = config_of(tiny_model("llama"))
        worker = open_worker(replace(config, device=replace(config.device, graphs=graphs)))
        warm = SamplingParams(temperature=0.8, seed=5)
        asks = SamplingParams(temperature=0, logprobs=2)
        begun = [
            new_row(0, [1, 2, 3, 4]),
            replace(new_row(1, [5, 6, 7, 8]), sampling=warm, seed=5, max_len=45),
            new_row(2, [9, 10, 11, 12]),
            replace(new_row(3, [13, 14, 15, 16]), sampling=asks),
        ]
        rows = [(row, 40, 0, True) for row in range(4)]
        tokens = run(worker, plan(1, rows, begun=begun, num_forwards=1))
        burst = config.scheduler.burst_steps
        tokens += run(worker, plan(2, [(row, 1, 40, True) for row in range(3)], num_forwards=burst))
        tokens += run(worker, plan(3, [(3, 1, 40, True)], num_forwards=2))  # asks for more than a draw
        tokens += run(worker, plan(4, [(0, 1, 40 + burst, True)], num_forwards=3))
        found[graphs] = tokens
    assert found["padded"] == found["exact"] == found["none"]


@pytest.mark.parametrize("graphs", ["exact", "padded"])
def test_a_burst_that_is_queued_gives_the_tokens_of_one_that_is_waited_for(
    tiny_model: Callable[[str], Path], graphs: str
) -> None:
    """As on a GPU, which runs one shape a launch; row 1 ends within the burst."""
    config = config_of(tiny_model("llama"))
    config = replace(config, device=replace(config.device, graphs=graphs))
    found = []
    for device in (CpuDevice(), QueueingCpu()):
        worker = open_worker(config, device)
        begun = [new_row(0, [1, 2, 3, 4]), replace(new_row(1, [5, 6, 7, 8]), max_len=45)]
        tokens = run(worker, plan(1, [(0, 40, 0, True), (1, 40, 0, True)], begun=begun))
        work = [(0, 1, 40, True), (1, 1, 40, True)]
        found.append(tokens + run(worker, plan(2, work, num_forwards=10, num_together=10)))
    assert found[0] == found[1]
    assert [row[1] == NO_TOKEN for row in found[0]] == [False] * 5 + [True] * 6

"""The device half of encoders, driven by hand-made plans: what decodes after an encoder says what transformers says,
recorded or not, and the bits of a content do not depend on what is encoded beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cadence.config.args import EngineArgs
from cadence.config.engine_config import EngineConfig
from cadence.config.hf import load_hf_config
from cadence.config.reference import find_model
from cadence.config.resolve import resolve
from cadence.core.contract.control import ALLOCATE_KV
from cadence.core.contract.step import NewRow, RowPayloads, StepPayloads, StepPlan
from cadence.core.encoder_input import ENCODER
from cadence.core.kv_spec import CROSS
from cadence.core.sampling_params import SamplingParams
from cadence.device.cpu import CpuDevice
from cadence.executor.factory import device_caps, open_on
from cadence.executor.worker.worker import Worker
from tests.helpers.encoded_rows import Content, length_of, work_of
from tests.helpers.tiny_seq2seq import POSITIONS, Seq2SeqOracle, make_seq2seq

pytestmark = pytest.mark.device

BLOCK = 16
PER_ROW = POSITIONS // BLOCK  # blocks of a row in each group
STEPS = 12


def open_worker(directory: Path, **options: Any) -> Worker:
    args = EngineArgs(model=str(directory), device="cpu", **{"dtype": "float32", "max_num_seqs": 4, **options})
    files = find_model(args.model)
    config: EngineConfig = resolve(args, files, load_hf_config(files), device_caps("cpu"))
    made = open_on(CpuDevice(), config).executor
    assert isinstance(made, Worker)
    made.call(ALLOCATE_KV, 1 + 4 * PER_ROW * len(made.layout.groups))
    return made


def blocks_of(worker: Worker, row: int, is_cross: bool, count: int = PER_ROW) -> tuple[list[int], ...]:
    """In no particular order, of groups with cross attention or of the others."""
    return tuple(
        [1 + (4 * group + row) * PER_ROW + (5 * block) % PER_ROW for block in range(count)]
        if (each.kind == CROSS) == is_cross
        else []
        for group, each in enumerate(worker.layout.groups)
    )


def new_row(worker: Worker, row: int, content: Content, prompt: list[int]) -> NewRow:
    cross = blocks_of(worker, row, True, -(-length_of(content) // BLOCK))
    own = blocks_of(worker, row, False)
    return NewRow(
        row=row,
        request_id=f"r{row}",
        token_ids_np=np.array(prompt, dtype=np.int32),
        prompt_len=len(prompt),
        num_computed=0,
        block_ids=tuple(a or b for a, b in zip(cross, own, strict=True)),
        sampling=SamplingParams(temperature=0),
        seed=0,
        stop_token_ids=frozenset(),
        max_len=POSITIONS,
        payloads=RowPayloads({ENCODER: length_of(content)}),
    )


def plan(step_id: int, work: list[tuple[int, int, int, bool]], **changes: Any) -> StepPlan:
    """work: (row, tokens, computed before, samples)."""
    columns_np = np.array(work, dtype=np.int32).reshape(-1, 4)
    parts = {"ended": [], "begun": [], "blocks": [], **changes}
    return StepPlan(
        step_id=step_id,
        rows_np=columns_np[:, 0].copy(),
        num_tokens_np=columns_np[:, 1].copy(),
        num_computed_np=columns_np[:, 2].copy(),
        num_samples_np=columns_np[:, 3].copy(),
        **parts,
    )


def run(worker: Worker, step: StepPlan) -> list[int]:
    worker.step(step)
    worker.advance(step.step_id, 0, 1)
    return worker.result().token_ids_np[0, :, 0].tolist()


def say(worker: Worker, contents: list[Content], prompts: list[list[int]], cut: int) -> list[list[int]]:
    """Greedy tokens of rows that begin together; prompts are computed up to `cut` tokens in the first step."""
    rows = range(len(contents))
    begun = [new_row(worker, row, contents[row], prompts[row]) for row in rows]
    works = [
        work_of(contents[row], blocks_of(worker, row, True, -(-length_of(contents[row]) // BLOCK))) for row in rows
    ]
    first = [min(cut, len(prompt) - 1) for prompt in prompts]
    order = sorted(rows, key=lambda row: first[row] > 1)
    work = [(row, first[row], 0, False) for row in order]
    run(worker, plan(1, work, begun=begun, payloads=StepPayloads({ENCODER: works})))
    order = sorted(rows, key=lambda row: len(prompts[row]) - first[row] > 1)
    told = dict(
        zip(order, run(worker, plan(2, [(row, len(prompts[row]) - first[row], first[row], True) for row in order])))
    )
    said = [[told[row]] for row in rows]
    for step in range(STEPS - 1):
        work = [(row, 1, len(prompts[row]) + step, True) for row in rows]
        for row, token in enumerate(run(worker, plan(3 + step, work))):
            said[row].append(token)
    return said


def tokens(count: int, seed: int) -> list[int]:
    return torch.randint(3, 300, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


CONTENTS: list[Content] = [tokens(37, 1), tokens(1, 2), tokens(90, 3)]
PROMPTS = [tokens(20, 4), tokens(2, 5), tokens(30, 6)]


@pytest.fixture(scope="module")
def bart(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_seq2seq("bart", tmp_path_factory.mktemp("bart"))


def check_greedy(directory: Path, contents: list[Content], prompts: list[list[int]], said: list[list[int]]) -> None:
    oracle = Seq2SeqOracle(directory)
    for content, prompt, told in zip(contents, prompts, said, strict=True):
        theirs = oracle.logprobs(content, prompt + told[:-1])[len(prompt) - 1 :]
        assert theirs.argmax(dim=-1).tolist() == told


@pytest.mark.parametrize("eager", [False, True], ids=["recorded", "not recorded"])
def test_decodes_say_what_transformers_says(eager: bool, bart: Path) -> None:
    worker = open_worker(bart, enforce_eager=eager)
    said = say(worker, CONTENTS, PROMPTS, cut=17)
    check_greedy(bart, CONTENTS, PROMPTS, said)

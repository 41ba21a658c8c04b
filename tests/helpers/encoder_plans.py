"""Rows of a model with an encoder, driven by hand-made plans through an executor."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from cadence.config.args import EngineArgs
from cadence.config.hf import load_hf_config
from cadence.config.reference import find_model
from cadence.config.resolve.resolve import resolve
from cadence.core.contract.control import ALLOCATE_KV
from cadence.core.contract.step import NewRow, RowPayloads, StepPayloads, StepPlan
from cadence.core.inputs.encoder_input import ENCODER
from cadence.core.model.kv_spec import CROSS
from cadence.core.sampling_params import SamplingParams
from cadence.device.cpu import CpuDevice
from cadence.device.probe import open_device
from cadence.executor.factory import device_caps, open_on
from cadence.executor.interface.opened import OpenExecutor
from tests.helpers.encoded_rows import Content, length_of, work_of
from tests.helpers.threaded_ranks import open_ranks
from tests.helpers.tiny_seq2seq import MELS, POSITIONS, Seq2SeqOracle

BLOCK, ROWS = 16, 4
PER_ROW = POSITIONS // BLOCK  # blocks of a row in each group
STEPS = 12


def tokens(count: int, seed: int) -> list[int]:
    return torch.randint(3, 300, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


TEXTS: list[Content] = [tokens(37, 1), tokens(1, 2), tokens(90, 3)]
SOUNDS: list[Content] = [np.random.default_rng(seed).normal(size=(MELS, 256)).astype(np.float32) for seed in range(3)]
PROMPTS = [tokens(20, 4), tokens(2, 5), tokens(30, 6)]


@contextmanager
def opened(directory: Path, device: str = "cpu", **options: Any) -> Iterator[OpenExecutor]:
    """One worker, or ranks in threads on the CPU. device: cpu | cuda"""
    given = {"dtype": "float32", "max_num_seqs": ROWS, "max_model_len": POSITIONS, **options}
    args = EngineArgs(model=str(directory), device=device, **given)
    files = find_model(args.model)
    config = resolve(args, files, load_hf_config(files), device_caps(device))
    one = config.parallel.world_size == 1
    made = open_on(open_device(device), config) if one else open_ranks(CpuDevice, config, ())
    made.executor.call(ALLOCATE_KV, 1 + ROWS * PER_ROW * len(made.layout.groups))
    yield made
    made.executor.stop()


def blocks_of(made: OpenExecutor, row: int, is_cross: bool, length: int = POSITIONS) -> tuple[list[int], ...]:
    """In no particular order, of groups with cross attention or of the others."""
    places = [(5 * block) % PER_ROW for block in range(-(-length // BLOCK))]
    return tuple(
        [1 + (ROWS * group + row) * PER_ROW + place for place in places] if (each.kind == CROSS) == is_cross else []
        for group, each in enumerate(made.layout.groups)
    )


def new_row(made: OpenExecutor, row: int, content: Content, prompt: list[int]) -> NewRow:
    cross, own = blocks_of(made, row, True, length_of(content)), blocks_of(made, row, False)
    return NewRow(
        row=row,
        request_id=f"r{row}",
        token_ids_np=np.array(prompt, dtype=np.int32),
        prompt_len=len(prompt),
        num_computed=0,
        block_ids=tuple(either or other for either, other in zip(cross, own, strict=True)),
        sampling=SamplingParams(temperature=0),
        seed=0,
        stop_token_ids=frozenset(),
        max_len=POSITIONS,
        payloads=RowPayloads({ENCODER: length_of(content)}),
    )


def run(made: OpenExecutor, work: list[tuple[int, int, int, bool]], **changes: Any) -> dict[int, int]:
    """work: (row, tokens, computed before, samples), those of one token first -> by row the token that it got"""
    columns_np = np.array(sorted(work, key=lambda each: each[1] > 1), dtype=np.int32)
    step = StepPlan(
        step_id=1,
        rows_np=columns_np[:, 0].copy(),
        num_tokens_np=columns_np[:, 1].copy(),
        num_computed_np=columns_np[:, 2].copy(),
        num_samples_np=columns_np[:, 3].copy(),
        **{"ended": [], "begun": [], "blocks": [], **changes},
    )
    made.executor.step(step)
    made.executor.advance(step.step_id, 0, 1)
    said = made.executor.result().token_ids_np[0, :, 0].tolist()
    return dict(zip(columns_np[columns_np[:, 3] > 0, 0].tolist(), said, strict=True))


def say(made: OpenExecutor, contents: list[Content], ended: list[int]) -> list[list[int]]:
    """Greedy tokens of rows that begin together. Prompts are computed in two steps."""
    rows, prompts = range(len(contents)), PROMPTS
    begun = [new_row(made, row, contents[row], prompts[row]) for row in rows]
    works = [work_of(contents[row], blocks_of(made, row, True, length_of(contents[row]))) for row in rows]
    first = [min(17, len(prompts[row]) - 1) for row in rows]
    payloads = StepPayloads({ENCODER: works})
    run(made, [(row, first[row], 0, False) for row in rows], ended=ended, begun=begun, payloads=payloads)
    told = [run(made, [(row, len(prompts[row]) - first[row], first[row], True) for row in rows])]
    for step in range(STEPS - 1):
        told.append(run(made, [(row, 1, len(prompts[row]) + step, True) for row in rows]))
    return [[each[row] for each in told] for row in rows]


def check_greedy(directory: Path, contents: list[Content], said: list[list[int]]) -> None:
    oracle = Seq2SeqOracle(directory)
    for content, prompt, told in zip(contents, PROMPTS, said, strict=True):
        theirs = oracle.logprobs(content, prompt + told[:-1])[len(prompt) - 1 :]
        assert theirs.argmax(dim=-1).tolist() == told


def contents_of(family: str) -> list[Content]:
    return SOUNDS if family == "whisper" else TEXTS


def check_near(directory: Path, contents: list[Content], said: list[list[int]]) -> None:
    """That tokens are about as likely as the likeliest: one drawn at random lacks 5 and more."""
    oracle = Seq2SeqOracle(directory)
    for content, prompt, told in zip(contents, PROMPTS, said, strict=True):
        theirs = oracle.logprobs(content, prompt + told[:-1])[len(prompt) - 1 :]
        chosen = theirs.gather(1, torch.tensor(told)[:, None])[:, 0]
        assert (theirs.max(dim=-1).values - chosen).mean() < 0.2

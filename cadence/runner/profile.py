"""Steps on the dummy row, as ordinary plans: the largest there can be, to measure memory, and others to warm up."""

from __future__ import annotations

import numpy as np

from cadence.core.contract.step import NewRow, StepPlan
from cadence.core.sampling_params import SamplingParams


def largest_step(num_tokens: int, max_model_len: int, max_rows: int, width: int = 1) -> list[int]:
    """`num_tokens` tokens over as many rows of `width` lines as there can be, the first ones as long as the model
    allows -> tokens of each"""
    counts = [width] * min(max_rows, num_tokens // width)
    spare = num_tokens - sum(counts)
    for index in range(len(counts)):
        extra = min(spare, max_model_len - width)
        counts[index] += extra
        spare -= extra
    return counts


def dummy_plan(
    dummy_row: int,
    counts: list[int],
    max_model_len: int,
    num_groups: int,
    sampling: SamplingParams,
    width: int = 1,
    num_computed: int = 0,
) -> StepPlan:
    """Sequences of so many new tokens each, all of which sample, after the last `width` if they have so many.
    width: 0, where the model has no logits. num_computed: tokens before them

    Every sequence is the dummy row, whose block table names only the null block.
    """
    begun = NewRow(
        row=dummy_row,
        request_id="dummy",
        token_ids_np=np.zeros(1, dtype=np.int32),
        prompt_len=1,
        num_computed=num_computed,
        block_ids=tuple([] for _ in range(num_groups)),
        sampling=sampling,
        seed=0,
        stop_token_ids=frozenset(),
        max_len=max_model_len,
    )
    num = len(counts)
    return StepPlan(
        step_id=0,
        ended=[],
        begun=[begun],
        blocks=[],
        rows_np=np.full(num, dummy_row, dtype=np.int32),
        num_tokens_np=np.asarray(counts, dtype=np.int32),
        num_computed_np=np.full(num, num_computed, dtype=np.int32),
        num_samples_np=np.minimum(counts, width).astype(np.int32),
        width=max(width, 1),
    )

"""Attention of long prompts in pieces against the reference: with plain torch in the place of the library's kernel, and
with that kernel on a GPU."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers.triton_mode import DEVICE  # isort: skip - before anything that imports triton

from cadence.kernels.interface.attention_batch import AttentionBatch, AttentionShape, LongRun, Sees
from cadence.kernels.interface.ops import Pair
from cadence.kernels.reference.ops import ReferenceOps
from cadence.kernels.triton.attention.attention import PagedAttention
from cadence.kernels.triton.attention.attention_long import CudnnAttend, LongAttention, Sizes, parts
from tests.helpers.kernel_cases import AttentionCase, make_inputs
from tests.helpers.kernel_checks import assert_close

pytestmark = pytest.mark.device

REFERENCE = ReferenceOps()
SIZES = Sizes(unit=16, queries=32, keys=64, least=48)


class PlainAttend:
    """An `Attend` that counts what it is asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, int, bool]] = []  # queries, keys, causal

    def suits(self, cache: torch.Tensor, shape: AttentionShape) -> bool:
        return True

    def __call__(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, scale: float) -> Pair:
        self.asked.append((q.shape[2], k.shape[2], causal))
        k, v = (each.repeat_interleave(q.shape[1] // k.shape[1], dim=1).float() for each in (k, v))
        scores = q.float() @ k.transpose(2, 3) * scale
        if causal:
            scores = scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(1), -torch.inf)
        out = (scores.softmax(-1) @ v).to(q.dtype)
        return out.transpose(1, 2).contiguous().transpose(1, 2), scores.logsumexp(-1, keepdim=True)


def with_long_runs(batch: AttentionBatch, case: AttentionCase, least: int) -> AttentionBatch:
    starts = batch.query_start.tolist()
    runs = [
        LongRun(index, starts[index], new, cached)
        for index, (cached, new) in enumerate(case.sequences)
        if new >= least and index >= batch.num_single
    ]
    return replace(batch, long_runs=tuple(runs))


def check(case: AttentionCase, long: LongAttention, least: int) -> None:
    here = make_inputs(case, DEVICE)
    batch = with_long_runs(here.batch, case, least)
    found = PagedAttention(long=long).run(here.q, here.kv, batch, 0, case.shape_on(DEVICE))
    inputs = make_inputs(case)
    assert_close(found, REFERENCE.paged_attention(inputs.q, inputs.kv, inputs.batch, 0, case.shape))


CASES = {
    "from the first token": AttentionCase(((0, 48),), 4, 2, 16, 8),
    "ends of its own": AttentionCase(((21, 90),), 2, 1, 16, 8),
    "between others": AttentionCase(((9, 1), (3, 20), (64, 40), (0, 50), (5, 33)), 4, 2, 16, 8),
    "after a long prefix": AttentionCase(((176, 32),), 2, 1, 16, 16),
    "other layers between blocks": AttentionCase(((16, 64),), 2, 1, 16, 8, apart=24),
    "half": AttentionCase(((32, 64), (0, 3)), 4, 1, 80, 16, dtype=torch.float16),
}


@pytest.mark.parametrize("name", CASES)
def test_pieces_give_what_the_whole_does(name: str) -> None:
    attend = PlainAttend()
    check(CASES[name], LongAttention(attend, SIZES), 16)
    assert attend.asked
    for queries, keys, causal in attend.asked:
        assert queries <= SIZES.queries and keys <= SIZES.keys and (not causal or queries == keys)
        assert all(number % SIZES.unit == 0 and (number & (number - 1)) == 0 for number in (queries, keys))


@pytest.mark.parametrize(
    "case",
    [
        AttentionCase(((0, 40),), 2, 1, 16, 8),  # short
        AttentionCase(((5, 26), (0, 60)), 2, 1, 16, 8, window=20),
        AttentionCase(((0, 60),), 2, 1, 16, 8, softcap=5.0),
        AttentionCase(((5, 26), (0, 60)), 2, 1, 16, 8, chunk=20),
        AttentionCase(((49, 14),), 2, 1, 16, 8),  # between two units
        AttentionCase(((0, 60),), 1, 1, 16, 8, reach=9),
        AttentionCase(((0, 60),), 1, 1, 16, 8, sees=Sees.BOTH_WAYS),
    ],
)
def test_what_it_does_not_take_is_left_to_triton(case: AttentionCase) -> None:
    attend = PlainAttend()
    check(case, LongAttention(attend, SIZES), 1)
    assert not attend.asked


def test_without_the_library_nothing_is_taken() -> None:
    case = AttentionCase(((0, 64),), 2, 1, 16, 8)
    if DEVICE == "cpu":
        check(case, LongAttention(CudnnAttend(), SIZES), 1)


@given(st.integers(0, 40), st.integers(0, 40), st.integers(0, 4))
def test_parts_are_all_there_is_in_few_sizes(begin: int, count: int, most: int) -> None:
    found = list(parts(begin * 8, (begin + count) * 8, 8, 8 << most))
    at = begin * 8
    for start, length in found:
        assert start == at and length in {8 << power for power in range(most + 1)}
        at += length
    assert at == (begin + count) * 8
    assert len({length for _, length in found}) <= most + 1


@pytest.mark.gpu
@pytest.mark.parametrize("head_dim", [64, 128])
def test_the_library_gives_what_triton_does(head_dim: int) -> None:
    case = AttentionCase(((7, 1), (9000, 9000), (0, 40)), 4, 2, head_dim, 16, dtype=torch.bfloat16)
    here = make_inputs(case, DEVICE)
    batch = with_long_runs(here.batch, case, 2048)
    assert LongAttention(CudnnAttend(), Sizes()).span(batch.long_runs[0], here.kv, case.shape) == (1240, 7384)
    ours = PagedAttention().run(here.q, here.kv, batch, 0, case.shape)
    plain = PagedAttention().run(here.q, here.kv, here.batch, 0, case.shape)
    assert not torch.equal(ours, plain)
    torch.testing.assert_close(ours.float(), plain.float(), rtol=2e-2, atol=4e-3)

"""Layers that keep a state on Triton kernels, against the reference: on a GPU where there is one, else tiny shapes in
the interpreter."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch

from tests.helpers.triton_mode import DEVICE, interpret, interpret_each_once  # isort: skip - before anything that imports triton

from cadence.kernels.interface.state_ops import StateOps
from cadence.kernels.reference.states import ReferenceStateOps
from cadence.kernels.triton.ops import TritonOps
from cadence.kernels.triton.states.states import TritonStateOps
from cadence.kernels.triton.states.tiles import DeltaChunks, HeadChunks, StateTiles
from tests.helpers.state_cases import (
    StateCase,
    Streams,
    Turn,
    conv_case,
    delta_case,
    drawn,
    head_scan_case,
    runs_of,
    scan_case,
)

pytestmark = pytest.mark.device

OPS = TritonOps().states
FIXED = TritonOps(deterministic=True).states
CHUNKED = TritonStateOps(
    tiles=StateTiles(few_tokens=1, head_chunks=HeadChunks(16, 16, 4, 2, 1), delta_chunks=DeltaChunks(16, 4, 16, 4, 1))
)
IN_SPANS = TritonStateOps(tiles=StateTiles(few_tokens=1, head_chunks=HeadChunks(16, 16, 4, 2, programs=9)))
PLAIN = ReferenceStateOps()
CASES: dict[str, Callable[..., StateCase]] = {
    "conv": partial(conv_case, channels=45),
    "conv of 2": partial(conv_case, channels=40, taps=2, silu=False),
    "conv of 1": partial(conv_case, channels=16, taps=1),
    "scan": partial(scan_case, size=37, state=5),
    "scan, even": partial(scan_case, size=32, state=4),
    "heads": partial(head_scan_case, heads=2, size=12, groups=1, state=5),
    "heads, even": partial(head_scan_case, heads=4, size=16, groups=2, state=16),
    "delta": partial(delta_case, key_heads=1, heads=2, key=5, value=12),
    "delta, even": partial(delta_case, key_heads=2, heads=2, key=16, value=16),
}
IN_CHUNKS = ["heads", "heads, even", "delta", "delta, even"]
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
CLOSE = {torch.float32: 2e-4, torch.bfloat16: 3e-2, torch.float16: 5e-3}

# Prompts and single tokens, drafts of which none, some or all turn out right, rows that stay as they are.
FORWARDS = [
    [Turn(1, 4), Turn(2, 7, 2, 1, 1), Turn(0, 0, padding=1)],
    [Turn(0, 1), Turn(2, 1, 2, 2), Turn(1, 1, 0, 3)],
    [Turn(1, 1), Turn(2, 1), Turn(0, 5, 1)],
]
# Longer ones, of several chunks of 16.
PROMPTS = [
    [Turn(1, 70), Turn(0, 7)],
    [Turn(0, 1), Turn(1, 33, 1, 3)],
    [Turn(2, 0, padding=19), Turn(1, 17, 2), Turn(0, 3)],
    [Turn(1, 5), Turn(0, 20, 1)],
]


def compare(ops: StateOps, name: str, dtype: torch.dtype, forwards: list[list[Turn]]) -> None:
    """Results and tables, kept inputs among them."""
    case = CASES[name](dtype, device=DEVICE)
    ours, theirs = (Streams(case, dtype, num_rows=3, device=DEVICE) for _ in range(2))
    for turns in forwards:
        ours.forward(ops, turns, 2)
        theirs.forward(PLAIN, turns, 2)
        for mine, its in zip(ours.tables, theirs.tables, strict=True):
            torch.testing.assert_close(mine, its, rtol=CLOSE[dtype], atol=CLOSE[dtype])
    for mine, its in zip(ours.outs, theirs.outs, strict=True):
        if mine:
            torch.testing.assert_close(torch.stack(mine), torch.stack(its), rtol=CLOSE[dtype], atol=CLOSE[dtype])


@pytest.mark.parametrize(("name", "dtype"), interpret_each_once(list(CASES), DTYPES))
def test_rows_follow_the_reference(name: str, dtype: torch.dtype) -> None:
    compare(OPS, name, dtype, FORWARDS)


@pytest.mark.parametrize(("name", "dtype"), interpret_each_once(IN_CHUNKS, DTYPES))
def test_prompts_in_chunks_follow_the_reference(name: str, dtype: torch.dtype) -> None:
    compare(CHUNKED, name, dtype, PROMPTS)


@pytest.mark.parametrize("name", interpret(IN_CHUNKS, ["heads", "delta"]))
def test_prompts_in_spans_and_in_wide_chunks_follow_the_reference(name: str) -> None:
    compare(IN_SPANS, name, torch.float32, PROMPTS)


@pytest.mark.parametrize("name", interpret(CASES, ["conv", "scan", "heads", "delta"]))
def test_bits_are_those_of_one_walk(name: str) -> None:
    streams = Streams(CASES[name](torch.float32, device=DEVICE), torch.float32, num_rows=3, device=DEVICE)
    for turns in FORWARDS:
        streams.forward(FIXED, turns, 1)
    streams.settle(FIXED)
    streams.check(FIXED)


@pytest.mark.parametrize("name", interpret(CASES, ["conv", "heads, even"]))
def test_rows_that_take_in_nothing_stay_as_they_are(name: str) -> None:
    case = CASES[name](torch.float32, device=DEVICE)
    for ops in (OPS, CHUNKED):
        tables = tuple(torch.full_like(table, 0.5) for table in case.tables(4, 3))
        runs = runs_of([(2, 1, 0, 0, 0), (0, 3, 0, 2, 1), (3, 4, 0, 0, 0), (2, 1, 0, 0, 0)], DEVICE)
        case.call(ops, drawn(0, 11, case.width, device=DEVICE), tables, runs)
        for table in tables:
            assert all((table[row] == 0.5).all() for row in (1, 2, 3))
            assert not (table[0] == 0.5).all()


@pytest.mark.parametrize(("size", "dtype"), interpret_each_once([(24, 12), (2500, 2500), (96, 32)], DTYPES))
def test_norm_and_gate_match_the_reference(size: tuple[int, int], dtype: torch.dtype) -> None:
    width, group = size
    both = torch.cat([drawn(0, 3, width), drawn(1, 3, width)], dim=1).to(DEVICE, dtype)
    x, gate = both.chunk(2, dim=1)
    close = {"rtol": CLOSE[dtype], "atol": CLOSE[dtype]}
    for weight in (drawn(2, group, device=DEVICE), drawn(3, width).to(DEVICE, dtype)):
        for first in (True, False):
            norms = [ops.gated_norm(x, gate, weight, 1e-5, group=group, norm_first=first) for ops in (OPS, PLAIN)]
            torch.testing.assert_close(*norms, **close)
    for silu in (True, False):
        torch.testing.assert_close(OPS.gate(x, gate, silu=silu), PLAIN.gate(x, gate, silu=silu), **close)
    for one in (gate, gate[:, :1]):
        torch.testing.assert_close(*(ops.sigmoid_gate(x, one) for ops in (OPS, PLAIN)), **close)


def test_weights_of_a_convolution_lie_anywhere() -> None:
    weight, x = drawn(0, 20, 4, device=DEVICE), drawn(1, 9, 20, device=DEVICE)
    for runs in (runs_of([(0, 9, 0, 9, 0)], DEVICE), runs_of([(0, 1, 0, 1, 0)], DEVICE)):
        outs = [
            OPS.short_conv(x, form, None, torch.zeros(1, 3, 20, device=DEVICE), runs, silu=True)
            for form in (weight, weight.T.contiguous().T)
        ]
        count = int(runs.query_start[-1])
        assert torch.equal(outs[0][:count], outs[1][:count])

"""Layers that keep a state: a row's tokens have the bits of one walk through all of them, in whatever pieces, with
whatever drafts and in whatever company they are computed; and every implementation says what the reference says."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cadence.device.calls import Calls, CommandGraph
from cadence.kernels.cpu.ops import CpuOps
from cadence.kernels.interface.state_ops import StateOps
from cadence.kernels.reference.states import ReferenceStateOps
from tests.helpers.kernel_checks import assert_close
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
from tests.helpers.wide import examples

pytestmark = pytest.mark.device

FLOATS = [torch.float32, torch.bfloat16, torch.float16]
REFERENCE = ReferenceStateOps()
CASES: dict[str, Callable[..., StateCase]] = {
    "conv of 4": conv_case,
    "conv of 3": partial(conv_case, channels=150, taps=3, silu=False),
    "conv of 6": partial(conv_case, channels=17, taps=6),
    "conv of 1": partial(conv_case, taps=1),
    "scan": partial(scan_case, size=165),
    "scan, narrow": partial(scan_case, size=7, state=5),
    "head_scan": partial(head_scan_case, size=64, state=33),
    "head_scan, narrow": head_scan_case,
    "head_scan, wide": partial(head_scan_case, heads=2, size=83, groups=1, state=16),
    "delta_rule": partial(delta_case, heads=2, key=33, value=128),
    "delta_rule, narrow": delta_case,
}


CLOSE = {
    torch.float32: {"rtol": 1e-4, "atol": 1e-4},
    torch.bfloat16: {"rtol": 1.6e-2, "atol": 2e-2},
    torch.float16: {"rtol": 2e-3, "atol": 3e-3},
}


@cache
def cpu_ops(threads: int = 2) -> StateOps:
    return CpuOps(Calls(threads)).states


@st.composite
def some_turns(draw: st.DrawFn) -> list[tuple[list[Turn], int]]:
    """Turns of three rows in each of some forwards, and padding after them."""
    counts = st.sampled_from([0, 1, 1, 1, 2, 3, 5, 16, 17, 33])
    few = st.integers(0, 2)

    def turn(row: int) -> Turn:
        certain, padding = draw(counts), draw(few)
        return Turn(row, certain, draw(few), draw(few), padding) if certain else Turn(row, 0, padding=padding + 1)

    return [
        ([turn(row) for row in draw(st.permutations(range(3)))[: draw(st.integers(1, 3))]], draw(st.integers(0, 2)))
        for _ in range(draw(st.integers(1, 4)))
    ]


@pytest.mark.parametrize("name", CASES)
@examples(12, 150)
@given(forwards=some_turns(), dtype=st.sampled_from(FLOATS))
def test_bits_are_those_of_one_walk(name: str, dtype: torch.dtype, forwards: list[tuple[list[Turn], int]]) -> None:
    streams, ops = Streams(CASES[name](dtype), dtype, num_rows=3), cpu_ops()
    for turns, padding in forwards:
        streams.forward(ops, turns, padding)
    streams.settle(ops)
    streams.check(ops)


FORWARDS = [
    [Turn(0, 5), Turn(2, 37, 2, 1, 1), Turn(1, 0, padding=2), Turn(3, 1)],
    [Turn(3, 1, 0, 3), Turn(1, 18), Turn(2, 1, 2, 2)],
    [Turn(3, 1, 4), Turn(2, 1, 1), Turn(0, 0, padding=1)],
]


@pytest.mark.parametrize("name", CASES)
def test_the_reference_too(name: str) -> None:
    streams = Streams(CASES[name](torch.float32), torch.float32, num_rows=4)
    for turns in FORWARDS:
        streams.forward(REFERENCE, turns, 1)
    streams.settle(REFERENCE)
    streams.check(REFERENCE)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", CASES)
def test_as_the_reference(name: str, dtype: torch.dtype) -> None:
    """Results and tables, kept inputs among them."""
    case = CASES[name](dtype)
    ours, theirs = Streams(case, dtype, num_rows=4), Streams(case, dtype, num_rows=4)
    for turns in FORWARDS:
        ours.forward(cpu_ops(), turns, 1)
        theirs.forward(REFERENCE, turns, 1)
        for mine, its in zip(ours.tables, theirs.tables, strict=True):
            torch.testing.assert_close(mine, its, **CLOSE[mine.dtype])
    for mine, its in zip(ours.outs, theirs.outs, strict=True):
        if mine:
            torch.testing.assert_close(torch.stack(mine).float(), torch.stack(its).float(), **CLOSE[dtype])


@pytest.mark.parametrize("name", CASES)
def test_rows_that_take_in_nothing_stay_as_they_are(name: str) -> None:
    case = CASES[name](torch.float32)
    for ops in (cpu_ops(), REFERENCE):
        tables = tuple(torch.full_like(table, 7.0) for table in case.tables(4, 3))
        runs = runs_of([(2, 1, 0, 0, 0), (0, 3, 0, 2, 1), (3, 4, 0, 0, 0), (2, 0, 0, 0, 0)])
        out = case.call(ops, drawn(0, 10, case.width), tables, runs)
        for table in tables:
            assert all((table[row] == 7.0).all() for row in (1, 2, 3))
            assert not (table[0] == 7.0).all()
        assert not out[0].any() and not out[4:8].any()  # what is padding within runs is no memory of others


@pytest.mark.parametrize("name", ["conv of 4", "scan", "head_scan", "delta_rule"])
def test_bits_do_not_hang_on_threads(name: str) -> None:
    tables = []
    for threads in (1, 2, 3):
        streams = Streams(CASES[name](torch.bfloat16), torch.bfloat16, num_rows=6)
        for _ in range(2):
            streams.forward(cpu_ops(threads), [Turn(row, 40 + row, 1, 1) for row in range(6)])
        tables.append((*streams.tables, torch.cat([torch.stack(outs) for outs in streams.outs])))
    for others in tables[1:]:
        assert all(map(torch.equal, tables[0], others))


@pytest.mark.parametrize("name", ["conv of 4", "scan, narrow", "head_scan, narrow", "delta_rule, narrow"])
def test_calls_can_be_recorded(name: str) -> None:
    """A replay does what the calls did, on what lies then where they looked."""
    case, calls = CASES[name](torch.bfloat16), Calls(2)
    ops, runs = CpuOps(calls).states, runs_of([(1, 3, 0, 2, 1)])
    inputs, tables = drawn(0, 3, case.width).bfloat16(), case.tables(2, 2)
    graph, out = calls.record(lambda: case.call(ops, inputs, tables, runs))
    assert isinstance(graph, CommandGraph)
    after = tuple(table.clone() for table in tables)
    inputs.copy_(drawn(1, 3, case.width))
    runs.replayed.fill_(1)
    graph.replay(lambda: out)
    assert torch.equal(out, case.call(ops, inputs, after, runs))
    assert all(map(torch.equal, tables, after))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(("width", "group"), [(12, 4), (83, 83), (130, 65), (96, 32)])
def test_norm_and_gate(width: int, group: int, dtype: torch.dtype) -> None:
    x, gate = (drawn(0, 5, 2 * width + 3) * 3).to(dtype).split([width, width, 3], dim=1)[:2]
    for weight in (drawn(2, group), drawn(2, width).to(dtype)):
        for first in (True, False):
            norm = [
                ops.gated_norm(x, gate, weight, 1e-5, group=group, norm_first=first) for ops in (cpu_ops(), REFERENCE)
            ]
            assert_close(*norm)
            alone = cpu_ops().gated_norm(x[3:4], gate[3:4], weight, 1e-5, group=group, norm_first=first)
            assert torch.equal(alone, norm[0][3:4])
    for silu in (True, False):
        assert_close(cpu_ops().gate(x, gate, silu=silu), REFERENCE.gate(x, gate, silu=silu))
    for one in (gate, gate[:, :1]):
        assert_close(cpu_ops().sigmoid_gate(x, one), REFERENCE.sigmoid_gate(x, one))


def test_weights_of_a_convolution_lie_anywhere() -> None:
    weight, x, runs = drawn(0, 40, 4).bfloat16(), drawn(1, 9, 40).bfloat16(), runs_of([(0, 9, 0, 9, 0)])
    outs = [
        cpu_ops().short_conv(x, form, None, torch.zeros(1, 3, 40).bfloat16(), runs, silu=True)
        for form in (weight, weight.T.contiguous().T, torch.stack([weight, weight], dim=2)[:, :, 1])
    ]
    assert torch.equal(outs[0], outs[1]) and torch.equal(outs[0], outs[2])

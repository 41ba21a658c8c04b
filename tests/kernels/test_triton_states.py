"""Layers that keep a state on Triton kernels, against the reference: on a GPU where there is one, else tiny shapes in
the interpreter."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch

from tests.helpers.triton_mode import DEVICE, interpret, interpret_each_once  # isort: skip - before anything that imports triton

from cadence.kernels.reference.states import ReferenceStateOps
from cadence.kernels.triton.ops import TritonOps
from tests.helpers.state_cases import StateCase, conv_case, delta_case, drawn, head_scan_case, scan_case
from tests.helpers.state_plans import DRAFTED, ELSEWISE, Plan, follow

pytestmark = pytest.mark.device

OPS = TritonOps().states
FIXED = TritonOps(deterministic=True).states
PLAIN = ReferenceStateOps()
CASES: dict[str, Callable[..., StateCase]] = {
    "conv": partial(conv_case, channels=45),
    "conv, two taps": partial(conv_case, channels=40, taps=2, silu=False),
    "scan": partial(scan_case, size=37, state=5),
    "scan, even": partial(scan_case, size=32, state=4),
    "heads": partial(head_scan_case, heads=2, size=12, groups=1, state=5),
    "heads, even": partial(head_scan_case, heads=4, size=16, groups=2, state=4),
    "delta": partial(delta_case, key_heads=1, heads=2, key=5, value=12),
    "delta, even": partial(delta_case, key_heads=2, heads=2, key=4, value=16),
}
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
CLOSE = {torch.float32: 1e-4, torch.bfloat16: 2e-2, torch.float16: 3e-3}


def compare(name: str, dtype: torch.dtype, plan: Plan) -> None:
    case = CASES[name](dtype, device=DEVICE)
    ours, theirs = (follow(ops, case, plan, dtype, DEVICE) for ops in (OPS, PLAIN))
    close = {"rtol": CLOSE[dtype], "atol": CLOSE[dtype]}
    for row, expected in theirs.outputs.items():
        torch.testing.assert_close(ours.outputs[row], expected, **close)
    torch.testing.assert_close(ours.states, theirs.states, rtol=1e-4, atol=1e-4)
    assert torch.equal(ours.tables[0][-1], theirs.tables[0][-1]), "a row that nothing was written to"


@pytest.mark.parametrize(("name", "dtype"), interpret_each_once(list(CASES), DTYPES))
def test_rows_follow_the_reference(name: str, dtype: torch.dtype) -> None:
    compare(name, dtype, DRAFTED)


@pytest.mark.parametrize("name", interpret(CASES, ["conv", "scan", "heads", "delta"]))
def test_bits_depend_on_the_row_alone(name: str) -> None:
    case = CASES[name](torch.float32, device=DEVICE)
    one, other = (follow(FIXED, case, plan, torch.float32, DEVICE) for plan in (DRAFTED, ELSEWISE))
    for row in (0, 1):
        assert torch.equal(one.outputs[row], other.outputs[row])
    assert torch.equal(one.states[:2], other.states[:2])


@pytest.mark.parametrize(("width", "group", "dtype"), interpret_each_once([24, 2500, 96], [12, 2500, 32], DTYPES))
def test_norm_and_gate_match_the_reference(width: int, group: int, dtype: torch.dtype) -> None:
    if width % group:
        pytest.skip("no whole groups")
    both = torch.cat([drawn(0, 3, width), drawn(1, 3, width)], dim=1).to(DEVICE, dtype)
    x, gate = both.chunk(2, dim=1)
    for weight in (drawn(2, group).to(DEVICE, dtype), drawn(3, width).to(DEVICE, dtype)):
        for first in (True, False):
            ours, theirs = (
                ops.gated_norm(x, gate, weight, 1e-5, group=group, norm_first=first) for ops in (OPS, PLAIN)
            )
            torch.testing.assert_close(ours, theirs, rtol=CLOSE[dtype], atol=CLOSE[dtype])
    for silu in (True, False):
        ours, theirs = (ops.gate(x, gate, silu=silu) for ops in (OPS, PLAIN))
        torch.testing.assert_close(ours, theirs, rtol=CLOSE[dtype], atol=CLOSE[dtype])

"""States of the target that wait for a head, in Triton: one launch for all of a token."""

# ruff: noqa: N803 - capitals mark compile-time constants
from __future__ import annotations

import torch
import triton
import triton.language as tl

from cadence.kernels.interface.row_ops import KeptStates, StepBatch
from cadence.kernels.triton.common.launch import quick

_STATES = 4  # of a token in one launch
_ENTRIES = 1024  # of a state that one program copies


@quick
@triton.jit
def _keep(
    rows_ptr, positions_ptr, to_a, to_b, to_c, to_d, a_ptr, b_ptr, c_ptr, d_ptr,
    a_stride, b_stride, c_stride, d_stride, hidden,
    ROOM: tl.constexpr, COUNT: tl.constexpr, AT_ONCE: tl.constexpr,
):  # fmt: skip
    """A program per row and piece of its states; COUNT: how many of the four there are."""
    row = tl.program_id(0)
    column = tl.program_id(1) * AT_ONCE + tl.arange(0, AT_ONCE)
    inside = column < hidden
    place = tl.load(rows_ptr + row).to(tl.int64) * ROOM + tl.load(positions_ptr + row) % ROOM
    to = place * hidden + column
    tl.store(to_a + to, tl.load(a_ptr + row * a_stride + column, mask=inside), mask=inside)
    if COUNT > 1:
        tl.store(to_b + to, tl.load(b_ptr + row * b_stride + column, mask=inside), mask=inside)
    if COUNT > 2:
        tl.store(to_c + to, tl.load(c_ptr + row * c_stride + column, mask=inside), mask=inside)
    if COUNT > 3:
        tl.store(to_d + to, tl.load(d_ptr + row * d_stride + column, mask=inside), mask=inside)


@quick
@triton.jit
def _kept(
    rows_ptr, start_ptr, positions_ptr, out_ptr, kept_ptr, hidden, ROOM: tl.constexpr, AT_ONCE: tl.constexpr
):  # fmt: skip
    """A program per run, token of it and piece of a state."""
    run = tl.program_id(0)
    token = tl.load(start_ptr + run) + tl.program_id(1)
    column = tl.program_id(2) * AT_ONCE + tl.arange(0, AT_ONCE)
    inside = (column < hidden) & (token < tl.load(start_ptr + run + 1))
    position = tl.load(positions_ptr + token, mask=token < tl.load(start_ptr + run + 1), other=0)
    place = tl.load(rows_ptr + run).to(tl.int64) * ROOM + position % ROOM
    state = tl.load(kept_ptr + place * hidden + column, mask=inside)
    tl.store(out_ptr + token.to(tl.int64) * hidden + column, state, mask=inside)


def keep_states(kept: KeptStates, batch: StepBatch, states: tuple[torch.Tensor, ...]) -> None:
    """`RowOps.keep_states`."""
    hidden = kept.states[0].shape[2]
    at_once = min(_ENTRIES, triton.next_power_of_2(hidden))
    grid = (batch.num_single, triton.cdiv(hidden, at_once))
    for first in range(0, len(states), _STATES):
        rings, these = kept.states[first : first + _STATES], states[first : first + _STATES]
        unused = _STATES - len(these)
        _keep[grid](
            batch.rows, batch.positions, *rings, *rings[:1] * unused, *these, *these[:1] * unused,
            *(each.stride(0) for each in these), *(0,) * unused, hidden,
            ROOM=kept.room, COUNT=len(these), AT_ONCE=at_once, num_warps=4,
        )  # fmt: skip


def kept_states(kept: KeptStates, batch: StepBatch) -> tuple[torch.Tensor, ...]:
    """`RowOps.kept_states`."""
    hidden = kept.states[0].shape[2]
    at_once = min(_ENTRIES, triton.next_power_of_2(hidden))
    grid = (batch.rows.shape[0], batch.max_query_len, triton.cdiv(hidden, at_once))
    states = []
    for ring in kept.states:
        out = ring.new_zeros((batch.ids.shape[0], hidden))
        rows = (batch.rows, batch.query_start, batch.positions)
        _kept[grid](*rows, out, ring, hidden, ROOM=kept.room, AT_ONCE=at_once, num_warps=4)
        states.append(out)
    return tuple(states)

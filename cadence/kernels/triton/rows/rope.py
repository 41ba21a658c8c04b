"""Positions with axes, in Triton: one launch, a program for some tokens."""

# ruff: noqa: N803 - capitals mark compile-time constants
from __future__ import annotations

import torch
import triton
import triton.language as tl

from cadence.core.inputs.media import SEGMENT
from cadence.kernels.interface.rope_ops import AxesTable, RopeSegments
from cadence.kernels.interface.row_ops import StepBatch
from cadence.kernels.triton.common.launch import quick

_TOKENS = 16  # that one program takes
_SEGMENT = tl.constexpr(SEGMENT)


@triton.jit
def _count_upto(at, stride: tl.constexpr, count, most, value):
    """Of `count` [TOKENS] ascending numbers from `at` [TOKENS] on, none of which are more than `most`, how many are at
    most `value` [TOKENS]."""
    low = count * 0
    high = count
    width = most
    while width > 0:
        middle = (low + high) // 2
        open_ = low < high
        is_past = tl.load(at + middle * stride, open_, other=0) <= value
        high = tl.where(open_ & (is_past == 0), middle, high)
        low = tl.where(open_ & is_past, middle + 1, low)
        width = width // 2
    return low


@quick
@triton.jit(do_not_specialize=["num_rows", "num_tokens", "most", "length"])
def _turns(
    out_ptr, cos_sin_ptr, axis_ptr, segments_ptr, counts_ptr, rows_ptr, query_start_ptr, positions_ptr,
    segment_stride, count_stride, num_rows, num_tokens, most, length,
    HALF: tl.constexpr, HALF_PAD: tl.constexpr, TOKENS: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    inside = token < num_tokens
    run = _count_upto(query_start_ptr + 1 + token * 0, 1, token * 0 + num_rows, num_rows, token)
    exists = inside & (run < num_rows)
    row = tl.load(rows_ptr + run, exists, other=0).to(tl.int64)
    position = tl.load(positions_ptr + token, exists, other=0).to(tl.int32)
    count = tl.load(counts_ptr + row * count_stride, exists, other=0)
    lines = segments_ptr + row * segment_stride
    found = _count_upto(lines, _SEGMENT, count, most, position)
    has = found > 0
    line = lines + (found - 1) * _SEGMENT
    i = position - tl.load(line, has, other=0)
    width = tl.load(line + 4, has, other=0)
    step = tl.where(width > 0, 0, i)
    t = tl.load(line + 1, has, other=0) + step
    h = tl.load(line + 2, has, other=0) + tl.where(width > 0, i // tl.maximum(width, 1), i)
    w = tl.load(line + 3, has, other=0) + tl.where(width > 0, i % tl.maximum(width, 1), i)
    column = tl.arange(0, HALF_PAD)[None, :]
    exists_column = column < HALF
    axis = tl.load(axis_ptr + column, exists_column, other=0)
    at = tl.where(axis == 0, t[:, None], tl.where(axis == 1, h[:, None], w[:, None]))
    at = tl.minimum(tl.maximum(at, 0), length - 1).to(tl.int64) * (2 * HALF) + column
    to = out_ptr + token.to(tl.int64)[:, None] * (2 * HALF) + column
    written = inside[:, None] & exists_column
    tl.store(to, tl.load(cos_sin_ptr + at, written), written)
    tl.store(to + HALF, tl.load(cos_sin_ptr + at + HALF, written), written)


class TritonRopeOps:
    def turns(self, segments: RopeSegments, batch: StepBatch, table: AxesTable, out: torch.Tensor) -> None:
        count, half = batch.ids.shape[0], table.axis_of.shape[0]
        _turns[(triton.cdiv(count, _TOKENS),)](
            out, table.cos_sin, table.axis_of, segments.lines, segments.counts, batch.rows, batch.query_start,
            batch.positions, segments.lines.stride(0), segments.counts.stride(0), batch.rows.shape[0], count,
            segments.lines.shape[1], table.cos_sin.shape[0],
            HALF=half, HALF_PAD=triton.next_power_of_2(half), TOKENS=_TOKENS, num_warps=4,
        )  # fmt: skip

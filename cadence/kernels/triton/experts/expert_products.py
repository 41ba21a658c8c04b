"""Products of tiles of tokens with matrices of their experts, which lie one below the other: tensors, rows of 4 or 8
bits, or blocks of a file, which become numbers in registers.

Arguments and constants that all of them have:
  out [num_pairs, outputs]: of pair p, line p // PER_LINE of x times its expert's matrix [outputs, WIDTH]
  pairs [tiles, ROWS]: those of each tile, num_pairs where there is none
  tile_experts [tiles], -1 = an empty tile
  ROWS, OUTPUTS, COLUMNS: a tile of pairs, of outputs, and the columns of a step
"""

# ruff: noqa: N803 - capitals mark compile-time constants
from __future__ import annotations

import triton
import triton.language as tl

from cadence.kernels.triton.common.launch import quick
from cadence.kernels.triton.lowbit.block_products import decoded_values
from cadence.kernels.triton.lowbit.few_bits_wide import product4, product8
from cadence.kernels.triton.lowbit.span_products import columns_of_runs, product_of_spans


@quick
@triton.jit
def expert_matmul(
    out_ptr, x_ptr, weight_ptr, pairs_ptr, tile_experts_ptr, num_pairs, outputs, x_stride,
    WIDTH: tl.constexpr, PER_LINE: tl.constexpr, ROWS: tl.constexpr, OUTPUTS: tl.constexpr, COLUMNS: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """weight [experts, outputs, WIDTH]"""
    expert = tl.load(tile_experts_ptr + tl.program_id(0))
    if expert >= 0:
        pair = tl.load(pairs_ptr + tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
        inside = pair < num_pairs
        output = tl.program_id(1) * OUTPUTS + tl.arange(0, OUTPUTS)
        column = tl.arange(0, COLUMNS)
        x_at = x_ptr + (pair // PER_LINE)[:, None] * x_stride + column[None, :]
        line = expert.to(tl.int64) * outputs + tl.minimum(output, outputs - 1)
        w_at = weight_ptr + line[None, :] * WIDTH + column[:, None]
        acc = tl.zeros([ROWS, OUTPUTS], tl.float32)
        for start in range(0, WIDTH, COLUMNS):
            some = start + column < WIDTH
            x = tl.load(x_at, inside[:, None] & some[None, :], other=0.0)
            w = tl.load(w_at, some[:, None], other=0.0)
            acc = tl.dot(x, w, acc, input_precision=PRECISION)
            x_at += COLUMNS
            w_at += COLUMNS
        place = out_ptr + pair[:, None] * outputs + output[None, :]
        tl.store(place, acc.to(out_ptr.dtype.element_ty), inside[:, None] & (output < outputs)[None, :])


@quick
@triton.jit(do_not_specialize=["num_pairs"])
def expert_few_bits(
    out_ptr, x_ptr, weight_ptr, scale_ptr, zero_ptr, pairs_ptr, tile_experts_ptr, num_pairs, outputs, x_stride,
    row_stride, group_stride, table_ptr,
    WIDTH: tl.constexpr, PER_LINE: tl.constexpr, ROWS: tl.constexpr, OUTPUTS: tl.constexpr, COLUMNS: tl.constexpr,
    GROUP: tl.constexpr, FOUR: tl.constexpr, ZEROS: tl.constexpr, LOOKUP: tl.constexpr, EVEN: tl.constexpr,
    QUICK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """weight: rows of all experts, as `Stored` says; it is the left side of the tensor cores. EVEN: OUTPUTS divides
    outputs, and COLUMNS divides WIDTH."""
    expert = tl.load(tile_experts_ptr + tl.program_id(0))
    if expert >= 0:
        pair = tl.load(pairs_ptr + tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
        output = tl.program_id(1) * OUTPUTS + tl.arange(0, OUTPUTS)
        exists, there = output < outputs, pair < num_pairs
        row = expert.to(tl.int64) * outputs + output
        HELD: tl.constexpr = 4 if FOUR else 1  # columns in an element of the weight
        place = tl.arange(0, COLUMNS // HELD)
        at = weight_ptr + row[:, None] * (WIDTH // HELD) + place[None, :]
        column = place // 16 * 64 + place % 16 if FOUR else place
        x_at = x_ptr + (pair // PER_LINE)[None, :] * x_stride + column[:, None]
        scale_at, zero_at = scale_ptr + row * row_stride, zero_ptr + row * row_stride
        acc = tl.zeros([OUTPUTS, ROWS], tl.float32)
        if FOUR:
            acc = product4(
                acc, at, x_at, scale_at, zero_at, group_stride, table_ptr, 0, WIDTH, exists, there,
                COLUMNS, GROUP, ZEROS, LOOKUP, EVEN, QUICK, PRECISION,
            )  # fmt: skip
        else:
            acc = product8(
                acc, at, x_at, scale_at, group_stride, 0, WIDTH, exists, there, COLUMNS, GROUP, WIDTH, EVEN, PRECISION
            )
        target = out_ptr + pair[None, :] * outputs + output[:, None]
        tl.store(target, acc.to(out_ptr.dtype.element_ty), exists[:, None] & there[None, :])


@quick
@triton.jit(do_not_specialize=["num_pairs"])
def expert_blocks(
    out_ptr, x_ptr, a, b, c, d, table, pairs_ptr, tile_experts_ptr, num_pairs, outputs, x_stride,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr, GROUP: tl.constexpr, SHIFTS: tl.constexpr, NUMBERS: tl.constexpr,
    SCALES: tl.constexpr, PER_LINE: tl.constexpr, ROWS: tl.constexpr, OUTPUTS: tl.constexpr, COLUMNS: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """a, b, c, d, table: planes of the rows of all experts, and what decodes them (`block_products`)"""
    expert = tl.load(tile_experts_ptr + tl.program_id(0))
    if expert >= 0:
        pair = tl.load(pairs_ptr + tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
        there = pair < num_pairs
        output = tl.program_id(1) * OUTPUTS + tl.arange(0, OUTPUTS)
        row = expert.to(tl.int64) * outputs + tl.minimum(output, outputs - 1)
        column = tl.arange(0, COLUMNS)
        x_at = x_ptr + (pair // PER_LINE)[None, :] * x_stride + column[:, None]
        acc = tl.zeros([OUTPUTS, ROWS], tl.float32)
        for start in range(0, WIDTH, COLUMNS):
            group = tl.minimum(start // GROUP + tl.arange(0, COLUMNS // GROUP), WIDTH // GROUP - 1)
            found = decoded_values(a, b, c, d, table, row, group, WIDTH, BLOCK, GROUP, SHIFTS, NUMBERS, SCALES)
            x = tl.load(x_at, (start + column < WIDTH)[:, None] & there[None, :], other=0.0)
            acc = tl.dot(tl.reshape(found.to(x.dtype), [OUTPUTS, COLUMNS]), x, acc, input_precision=PRECISION)
            x_at += COLUMNS
        target = out_ptr + pair[None, :] * outputs + output[:, None]
        tl.store(target, acc.to(out_ptr.dtype.element_ty), (output < outputs)[:, None] & there[None, :])


@quick
@triton.jit(do_not_specialize=["num_pairs"])
def expert_spans(
    out_ptr, x_ptr, a, b, c, d, pairs_ptr, tile_experts_ptr, num_pairs, outputs, x_stride,
    WIDTH: tl.constexpr, GROUP: tl.constexpr, GROUPS: tl.constexpr, SHIFTS: tl.constexpr, TILES: tl.constexpr,
    NUMBERS: tl.constexpr, LIFT: tl.constexpr, LOOKUP: tl.constexpr, SCALES: tl.constexpr, QUICK: tl.constexpr,
    PER_LINE: tl.constexpr, ROWS: tl.constexpr, OUTPUTS: tl.constexpr, SPANS: tl.constexpr, EVEN: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """a, b, c, d: planes of words of the rows of all experts, and what decodes them (`span_products`)"""
    expert = tl.load(tile_experts_ptr + tl.program_id(0))
    if expert >= 0:
        pair = tl.load(pairs_ptr + tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
        output = tl.program_id(1) * OUTPUTS + tl.arange(0, OUTPUTS)
        exists, there = output < outputs, pair < num_pairs
        x_at = x_ptr + (pair // PER_LINE)[None, :] * x_stride + columns_of_runs(SPANS)[:, None]
        acc = product_of_spans(
            tl.zeros([OUTPUTS, ROWS], tl.float32), x_at, a, b, c, d, expert.to(tl.int64) * outputs + output, exists,
            there, 0, WIDTH,
            WIDTH, SPANS, GROUP, GROUPS, SHIFTS, TILES, NUMBERS, LIFT, LOOKUP, SCALES, QUICK, EVEN, PRECISION,
        )  # fmt: skip
        target = out_ptr + pair[None, :] * outputs + output[:, None]
        tl.store(target, acc.to(out_ptr.dtype.element_ty), exists[:, None] & there[None, :])

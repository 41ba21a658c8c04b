"""Products with the blocks of a GGUF file, which become numbers in registers, and the numbers themselves.

NUMBERS and SCALES are the two decoders of a type (`block_decoders`); a kernel is compiled anew for every type.
"""

# ruff: noqa: N803 - capitals mark compile-time constants, also where they are not annotated
from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from cadence.kernels.triton.common.launch import quick
from cadence.kernels.triton.linear.few_rows import store_terms
from cadence.kernels.triton.linear.gemv import entering, rows_of, store_outputs


@triton.jit
def _decoded(a, b, c, d, table, row, group, WIDTH, BLOCK, GROUP, NUMBERS, SCALES):
    """Groups [N] of rows [R] int64 -> numbers [R, N, GROUP], scales [R, N] and what is subtracted, [R, N] or 0."""
    PARTS: tl.constexpr = BLOCK // GROUP
    at = row[:, None] * (WIDTH // BLOCK) + (group // PARTS)[None, :]
    part = (group % PARTS)[None, :]
    scale, shift = SCALES(a, b, c, d, at, part)
    i = tl.arange(0, GROUP)[None, None, :]
    return NUMBERS(a, b, c, d, table, at[:, :, None], part[:, :, None], i), scale, shift


@triton.jit
def decoded_values(a, b, c, d, table, row, group, WIDTH, BLOCK, GROUP, SHIFTS, NUMBERS, SCALES):
    """[R, N, GROUP] float32"""
    numbers, scale, shift = _decoded(a, b, c, d, table, row, group, WIDTH, BLOCK, GROUP, NUMBERS, SCALES)
    found = numbers * scale[:, :, None]
    if SHIFTS:
        found -= shift[:, :, None]
    return found


@quick
@triton.jit
def block_values(
    out_ptr, ids_ptr, a, b, c, d, table, factor,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr, GROUP: tl.constexpr, COLUMNS: tl.constexpr, SHIFTS: tl.constexpr,
    NUMBERS: tl.constexpr, SCALES: tl.constexpr, PICKED: tl.constexpr,
):  # fmt: skip
    """out [rows, WIDTH]: rows of a matrix, times a factor; PICKED: those of `ids`."""
    line = tl.program_id(0).to(tl.int64)
    row = line
    if PICKED:
        row = tl.load(ids_ptr + line).to(tl.int64)
    group = tl.program_id(1) * (COLUMNS // GROUP) + tl.arange(0, COLUMNS // GROUP)
    known = tl.minimum(group, WIDTH // GROUP - 1)
    rows = row + tl.zeros([1], tl.int64)
    found = decoded_values(a, b, c, d, table, rows, known, WIDTH, BLOCK, GROUP, SHIFTS, NUMBERS, SCALES)
    if PICKED:
        found *= factor
    place = group[None, :, None] * GROUP + tl.arange(0, GROUP)[None, None, :]
    tl.store(out_ptr + line * WIDTH + place, found.to(out_ptr.dtype.element_ty), place < WIDTH)


@quick
@triton.jit
def block_gemv(
    out_ptr, total_ptr, x_ptr, residual_ptr, norm_ptr, a, b, c, d, table, bias_ptr, eps, outputs,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr, GROUP: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    SHIFTS: tl.constexpr, NUMBERS: tl.constexpr, SCALES: tl.constexpr,
    NORM: tl.constexpr, GATE: tl.constexpr, BIAS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """out [outputs] = weight times x [WIDTH]; with NORM, times rms_norm(x + residual), whose sum goes to `total`. As
    `gemv`, of which it has the order of work. GATE "silu" or "gelu": 2 * outputs rows (g, u), and out is
    activate(g) * u; a program then takes ROWS / 2 rows of each, in turn."""
    NUM: tl.constexpr = COLUMNS // GROUP
    part = tl.program_id(0)
    row, exists = rows_of(part, outputs, ROWS, GATE != "")
    row = tl.where(exists, row, 0)  # decoders read without masks
    row64 = row.to(tl.int64)
    near = tl.minimum(tl.arange(0, NUM), WIDTH // GROUP - 1)
    numbers, scale, shift = _decoded(a, b, c, d, table, row64, near, WIDTH, BLOCK, GROUP, NUMBERS, SCALES)
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    sums = tl.zeros([ROWS, NUM], tl.float32)
    squares = tl.zeros([NUM], tl.float32)
    for start in tl.static_range(0, WIDTH, COLUMNS):
        column = start + tl.arange(0, NUM)[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
        x, total = entering(x_ptr, residual_ptr, total_ptr, norm_ptr, column, part == 0, WIDTH, NORM)
        found = tl.sum(numbers * x[None, :, :], 2) * scale
        if SHIFTS:
            found -= shift * tl.sum(x, 1)[None, :]
        sums += found
        if NORM:
            squares += tl.sum(total * total, 1)
        if start + COLUMNS < WIDTH:
            near = tl.minimum((start + COLUMNS) // GROUP + tl.arange(0, NUM), WIDTH // GROUP - 1)
            numbers, scale, shift = _decoded(a, b, c, d, table, row64, near, WIDTH, BLOCK, GROUP, NUMBERS, SCALES)
    result = tl.sum(sums, 1)
    if NORM:
        result *= 1.0 / tl.sqrt(tl.sum(squares, 0) / WIDTH + eps)
    store_outputs(out_ptr, bias_ptr, result, row, exists, part, outputs, GATE, BIAS)


@quick
@triton.jit(do_not_specialize=["rows"])
def block_rows(
    out_ptr, x_ptr, a, b, c, d, table, bias_ptr, rows, outputs, x_stride,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr, GROUP: tl.constexpr, ROWS: tl.constexpr, OUTPUTS: tl.constexpr,
    COLUMNS: tl.constexpr, SHIFTS: tl.constexpr, NUMBERS: tl.constexpr, SCALES: tl.constexpr, TERMS: tl.constexpr,
    EVEN: tl.constexpr, BIAS: tl.constexpr, PRECISION: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """out [TERMS, rows, outputs], whose sum is x [rows, WIDTH] times the matrix, which is the left side of the tensor
    cores. Columns come in one order: a row's bits do not depend on the rows beside it. EVEN: COLUMNS divides
    WIDTH // TERMS; with several terms it is so."""
    PART: tl.constexpr = WIDTH // TERMS
    term = tl.program_id(2)
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    output = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)
    known = tl.minimum(output, outputs - 1)
    there, column = row < rows, tl.arange(0, COLUMNS)
    x_at = x_ptr + row.to(tl.int64)[None, :] * x_stride + term * PART + column[:, None]
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    acc = tl.zeros([OUTPUTS, ROWS], tl.float32)
    for first in range(0, PART, COLUMNS):
        start = term * PART + first
        group = start // GROUP + tl.arange(0, COLUMNS // GROUP)
        inside = there[None, :]
        if not EVEN:
            group = tl.minimum(group, WIDTH // GROUP - 1)
            inside = inside & (start + column < WIDTH)[:, None]
        found = decoded_values(
            a, b, c, d, table, known.to(tl.int64), group, WIDTH, BLOCK, GROUP, SHIFTS, NUMBERS, SCALES
        )
        x = tl.load(x_at, inside, other=0.0)
        weight = tl.reshape(found.to(x.dtype), [OUTPUTS, COLUMNS])
        acc = tl.dot(weight, x, acc, input_precision=PRECISION)
        x_at += COLUMNS
    store_terms(out_ptr, bias_ptr, acc, term, row, output, rows, outputs, BIAS)

"""The numbers of a matrix in planes of words (`span_planes`), and products of some rows with them.

LOAD, VALUES and SCALES are the decoders of a type (`span_decoders`); kernels are compiled anew for every type.
"""

# ruff: noqa: N803 - capitals mark compile-time constants
from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from cadence.kernels.triton.launch import quick


@triton.jit
def _by_span(of_groups, GROUP: tl.constexpr, SPANS: tl.constexpr):
    """[n, blocks, groups] -> what runs 0 to 3 of 16 columns have, each [n, SPANS]"""
    LINES: tl.constexpr = of_groups.shape[0]
    if GROUP == 32:
        zero, two = tl.split(tl.reshape(of_groups, [LINES, SPANS, 2]))
        one, three = zero, two
    else:
        first, last = tl.split(tl.reshape(of_groups, [LINES, SPANS, 2, 2]))
        zero, two = tl.split(first)
        one, three = tl.split(last)
    return zero, one, two, three


@triton.jit
def _factors(
    c, d, row, exists, first, WIDTH: tl.constexpr, SPANS: tl.constexpr, GROUP: tl.constexpr, GROUPS: tl.constexpr,
    SHIFTS: tl.constexpr, SCALES: tl.constexpr,
):  # fmt: skip
    """What the runs of spans [first, first + SPANS) are times, and what is subtracted then."""
    codes, least, factor, least_factor = SCALES(c, d, row, exists, first, WIDTH, SPANS, GROUP * GROUPS)
    scales = _by_span(codes * factor[:, :, None], GROUP, SPANS)
    shifts = scales
    if SHIFTS:
        shifts = _by_span(least * least_factor[:, :, None], GROUP, SPANS)
    return scales, shifts


@triton.jit
def _run(words, scale, shift, ZERO: tl.constexpr, SIGNED: tl.constexpr, SHIFTS: tl.constexpr):
    """words [n, 2 * SPANS] of four values -> [n, SPANS, 8] float32"""
    LINES: tl.constexpr = words.shape[0]
    SPANS: tl.constexpr = words.shape[1] // 2
    place = (tl.arange(0, 4) * 8)[None, None, :]
    if SIGNED:
        bytes4 = (words[:, :, None] << (24 - place)) >> 24
    else:
        bytes4 = (words[:, :, None] >> place & 255) - ZERO
    found = tl.reshape(bytes4.to(tl.float32), [LINES, SPANS, 8]) * scale[:, :, None]
    if SHIFTS:
        found -= shift[:, :, None]
    return found


@triton.jit
def _side_by_side(first, last):
    """[n, SPANS, m] each -> [n, SPANS, 2 * m]"""
    LINES: tl.constexpr = first.shape[0]
    SPANS: tl.constexpr = first.shape[1]
    EACH: tl.constexpr = first.shape[2]
    return tl.reshape(tl.permute(tl.join(first, last), [0, 1, 3, 2]), [LINES, SPANS, 2 * EACH])


@quick
@triton.jit
def span_values(
    out_ptr, ids_ptr, a, b, c, d, factor, rows,
    WIDTH: tl.constexpr, ROWS: tl.constexpr, SPANS: tl.constexpr, GROUP: tl.constexpr, GROUPS: tl.constexpr,
    ZERO: tl.constexpr, SIGNED: tl.constexpr, SHIFTS: tl.constexpr, LOAD: tl.constexpr, VALUES: tl.constexpr,
    SCALES: tl.constexpr, QUICK: tl.constexpr, PICKED: tl.constexpr,
):  # fmt: skip
    """out [rows, WIDTH]: rows of a matrix, times a factor; PICKED: those of `ids`."""
    line = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    exists, row = line < rows, line
    if PICKED:
        row = tl.load(ids_ptr + line, exists, other=0).to(tl.int64)
    first = tl.program_id(1) * SPANS
    held = LOAD(a, b, row, exists, first, WIDTH, SPANS)
    scales, shifts = _factors(c, d, row, exists, first, WIDTH, SPANS, GROUP, GROUPS, SHIFTS, SCALES)
    runs = ()  # of 8 columns, in their order but for halves, which come first
    for half in tl.static_range(2):
        for group in tl.static_range(2):
            words = VALUES(held, half, group, QUICK)
            for last in tl.static_range(2):
                scale, shift = scales[2 * group + last], shifts[2 * group + last]
                found = _run(words[last], scale, shift, ZERO, SIGNED, SHIFTS) * factor
                runs += (found.to(out_ptr.dtype.element_ty),)
    first_32 = _side_by_side(_side_by_side(runs[0], runs[4]), _side_by_side(runs[1], runs[5]))
    last_32 = _side_by_side(_side_by_side(runs[2], runs[6]), _side_by_side(runs[3], runs[7]))
    span = first + tl.arange(0, SPANS)
    column = span[None, :, None] * 64 + tl.arange(0, 64)[None, None, :]
    inside = exists[:, None, None] & (span < WIDTH // 64)[None, :, None]
    tl.store(out_ptr + line[:, None, None] * WIDTH + column, _side_by_side(first_32, last_32), inside)


@triton.jit
def columns_of_runs(SPANS: tl.constexpr):
    """The first eight columns of every span [8 * SPANS]."""
    place = tl.arange(0, 8 * SPANS)
    return place // 8 * 64 + place % 8


@triton.jit
def product_of_spans(
    acc, x_at, a, b, c, d, index, exists, there, begin, end,
    WIDTH: tl.constexpr, SPANS: tl.constexpr, GROUP: tl.constexpr, GROUPS: tl.constexpr, ZERO: tl.constexpr,
    SIGNED: tl.constexpr, SHIFTS: tl.constexpr, LOAD: tl.constexpr, VALUES: tl.constexpr, SCALES: tl.constexpr,
    QUICK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """acc [OUTPUTS, ROWS] and the product of columns [begin, end) of rows `index` of the matrix [OUTPUTS]. x_at
    [8 * SPANS, ROWS]: to the columns that `columns_of_runs` names, from `begin` on."""
    column = columns_of_runs(SPANS)
    for start in range(begin, end, SPANS * 64):
        first = start // 64
        inside = there[None, :] & (start + column < WIDTH)[:, None]
        held = LOAD(a, b, index, exists, first, WIDTH, SPANS)
        scales, shifts = _factors(c, d, index, exists, first, WIDTH, SPANS, GROUP, GROUPS, SHIFTS, SCALES)
        for half in tl.static_range(2):
            for group in tl.static_range(2):
                words = VALUES(held, half, group, QUICK)
                for last in tl.static_range(2):
                    x = tl.load(x_at + (32 * group + 16 * last + 8 * half), inside, other=0.0)
                    scale, shift = scales[2 * group + last], shifts[2 * group + last]
                    found = _run(words[last], scale, shift, ZERO, SIGNED, SHIFTS)
                    weight = tl.reshape(found.to(x.dtype), [acc.shape[0], 8 * SPANS])
                    acc = tl.dot(weight, x, acc, input_precision=PRECISION)
        x_at += SPANS * 64
    return acc


@quick
@triton.jit(do_not_specialize=["rows"])
def span_rows(
    out_ptr, x_ptr, a, b, c, d, bias_ptr, rows, outputs, x_stride,
    WIDTH: tl.constexpr, SPANS: tl.constexpr, GROUP: tl.constexpr, GROUPS: tl.constexpr, ZERO: tl.constexpr,
    SIGNED: tl.constexpr, SHIFTS: tl.constexpr, LOAD: tl.constexpr, VALUES: tl.constexpr, SCALES: tl.constexpr,
    QUICK: tl.constexpr, ROWS: tl.constexpr, OUTPUTS: tl.constexpr, TERMS: tl.constexpr, BIAS: tl.constexpr,
    PRECISION: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """out [TERMS, rows, outputs], whose sum is x [rows, WIDTH] times the matrix, which is the left side of the tensor
    cores. Columns come in one order: a row's bits do not depend on the rows beside it. With several terms SPANS spans
    divide WIDTH // TERMS."""
    PART: tl.constexpr = WIDTH // TERMS
    term = tl.program_id(2)
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    output = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)
    exists, there = output < outputs, row < rows
    index = output.to(tl.int64)
    x_at = x_ptr + row.to(tl.int64)[None, :] * x_stride + term * PART + columns_of_runs(SPANS)[:, None]
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    acc = product_of_spans(
        tl.zeros([OUTPUTS, ROWS], tl.float32), x_at, a, b, c, d, index, exists, there, term * PART, term * PART + PART,
        WIDTH, SPANS, GROUP, GROUPS, ZERO, SIGNED, SHIFTS, LOAD, VALUES, SCALES, QUICK, PRECISION,
    )  # fmt: skip
    if BIAS and term == 0:
        acc += tl.load(bias_ptr + output, exists, other=0.0).to(tl.float32)[:, None]
    target = out_ptr + (term * rows + row).to(tl.int64)[None, :] * outputs + output[:, None]
    tl.store(target, acc.to(out_ptr.dtype.element_ty), exists[:, None] & there[None, :])

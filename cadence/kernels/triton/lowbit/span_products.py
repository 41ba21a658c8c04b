"""The numbers of a matrix in planes of words (`span_planes`), and products of some rows with them.

TILES and NUMBERS (`span_tiles`) and SCALES (`span_decoders`) are the decoders of a type; kernels are compiled anew for
every type. LIFT: how much too large numbers are, beside what stands for 0. LOOKUP: instructions that turn codes into
numbers, of a matrix with a table (`few_bits_table`), instead of NUMBERS.
"""

# ruff: noqa: N803 - capitals mark compile-time constants, also where they are not annotated
from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from cadence.kernels.triton.common.launch import quick
from cadence.kernels.triton.linear.few_rows import store_terms
from cadence.kernels.triton.lowbit.few_bits_table import quarters_of_table


@triton.jit
def _by_span(of_groups, GROUP, SPANS):
    """[n, blocks, groups] -> what runs 0 to 3 of 16 columns have, each [n, SPANS]"""
    LINES: tl.constexpr = of_groups.shape[0]
    if GROUP == 64:
        zero = tl.reshape(of_groups, [LINES, SPANS])
        one, two, three = zero, zero, zero
    elif GROUP == 32:
        zero, two = tl.split(tl.reshape(of_groups, [LINES, SPANS, 2]))
        one, three = zero, two
    else:
        first, last = tl.split(tl.reshape(of_groups, [LINES, SPANS, 2, 2]))
        zero, two = tl.split(first)
        one, three = tl.split(last)
    return zero, one, two, three


@triton.jit
def _factors(c, d, row, exists, first, WIDTH, SPANS, GROUP, GROUPS, SHIFTS, SCALES):
    """What the runs of spans [first, first + SPANS) are times, and what is subtracted then: four of [ROWS, SPANS]."""
    codes, least, factor, least_factor = SCALES(c, d, row, exists, first, WIDTH, SPANS, GROUP * GROUPS, GROUP)
    scales = _by_span(codes * factor[:, :, None], GROUP, SPANS)
    if SHIFTS:
        return scales, _by_span(least * least_factor[:, :, None], GROUP, SPANS)
    nothing = tl.zeros_like(scales[0])
    return scales, (nothing, nothing, nothing, nothing)


@triton.jit
def along(of_spans):
    """[n, SPANS] -> [n, 16 * SPANS]: of every column what its span has"""
    LINES: tl.constexpr = of_spans.shape[0]
    SPANS: tl.constexpr = of_spans.shape[1]
    return tl.reshape(tl.broadcast_to(of_spans[:, :, None], [LINES, SPANS, 16]), [LINES, 16 * SPANS])


@triton.jit
def _of_tiles(held, NUMBERS, LOOKUP, QUICK):
    if LOOKUP != "":
        four = quarters_of_table(held[0], held[1], tl.float16 if QUICK else tl.float32, LOOKUP, QUICK)
        return four[0].to(tl.float32), four[1].to(tl.float32), four[2].to(tl.float32), four[3].to(tl.float32)
    return NUMBERS(held, QUICK)


@triton.jit
def _side_by_side(first, last, EACH):
    """[n, SPANS * EACH] each -> [n, SPANS * 2 * EACH], by spans"""
    LINES: tl.constexpr = first.shape[0]
    SPANS: tl.constexpr = first.shape[1] // EACH
    both = tl.reshape(tl.join(first, last), [LINES, SPANS, EACH, 2])
    return tl.reshape(tl.permute(both, [0, 1, 3, 2]), [LINES, SPANS * 2 * EACH])


@triton.jit
def store_spans(out_ptr, found, line, exists, first, WIDTH):
    """Spans from the `first` on of rows `line` of out [rows, WIDTH]. found: their columns 0 to 15, 16 to 31 and so on,
    four of [n, 16 * SPANS]"""
    whole = _side_by_side(_side_by_side(found[0], found[1], 16), _side_by_side(found[2], found[3], 16), 32)
    column = first * 64 + tl.arange(0, whole.shape[1])
    at = out_ptr + line[:, None] * WIDTH + column[None, :]
    tl.store(at, whole, exists[:, None] & (column < WIDTH)[None, :])


@quick
@triton.jit
def span_values(
    out_ptr, ids_ptr, a, b, c, d, factor, rows,
    WIDTH: tl.constexpr, ROWS: tl.constexpr, SPANS: tl.constexpr, GROUP: tl.constexpr, GROUPS: tl.constexpr,
    SHIFTS: tl.constexpr, TILES: tl.constexpr, NUMBERS: tl.constexpr, LIFT: tl.constexpr, LOOKUP: tl.constexpr,
    SCALES: tl.constexpr, QUICK: tl.constexpr, PICKED: tl.constexpr,
):  # fmt: skip
    """out [rows, WIDTH]: rows of a matrix, times a factor; PICKED: those of `ids`."""
    line = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    exists, row = line < rows, line
    if PICKED:
        row = tl.load(ids_ptr + line, exists, other=0).to(tl.int64)
    first = tl.program_id(1) * SPANS
    numbers = _of_tiles(TILES(a, b, row, exists, first, WIDTH, SPANS, False, QUICK), NUMBERS, LOOKUP, QUICK)
    scales, shifts = _factors(c, d, row, exists, first, WIDTH, SPANS, GROUP, GROUPS, SHIFTS, SCALES)
    found = ()
    for part in tl.static_range(4):
        value = (numbers[part] - LIFT) * along(scales[part])
        if SHIFTS:
            value -= along(shifts[part])
        found += ((value * factor).to(out_ptr.dtype.element_ty),)
    store_spans(out_ptr, found, line, exists, first, WIDTH)


@triton.jit
def columns_of_runs(SPANS):
    """The first sixteen columns of every span [16 * SPANS]."""
    place = tl.arange(0, 16 * SPANS)
    return place // 16 * 64 + place % 16


@triton.jit
def product_of_spans(
    acc, x_at, a, b, c, d, index, exists, there, begin, end, WIDTH, SPANS, GROUP, GROUPS, SHIFTS, TILES, NUMBERS,
    LIFT, LOOKUP, SCALES, QUICK, EVEN, PRECISION,
):  # fmt: skip
    """acc [OUTPUTS, ROWS] and the product of columns [begin, end) of rows `index` of the matrix [OUTPUTS]. x_at
    [16 * SPANS, ROWS]: to the columns that `columns_of_runs` names, from `begin` on. EVEN: all of `exists` is so, and
    steps of SPANS spans divide WIDTH."""
    column = columns_of_runs(SPANS)
    for start in range(begin, end, SPANS * 64):
        first = start // 64
        inside = there[None, :]
        if not EVEN:
            inside = inside & (start + column < WIDTH)[:, None]
        held = TILES(a, b, index, exists, first, WIDTH, SPANS, EVEN, QUICK)
        numbers = _of_tiles(held, NUMBERS, LOOKUP, QUICK)
        scales, shifts = _factors(c, d, index, exists, first, WIDTH, SPANS, GROUP, GROUPS, SHIFTS, SCALES)
        for part in tl.static_range(4):
            x = tl.load(x_at + 16 * part, inside, other=0.0)
            less = along(shifts[part] + LIFT * scales[part])
            weight = (numbers[part] * along(scales[part]) - less).to(x.dtype)
            acc = tl.dot(weight, x, acc, input_precision=PRECISION)
        x_at += SPANS * 64
    return acc


@quick
@triton.jit(do_not_specialize=["rows"])
def span_rows(
    out_ptr, x_ptr, a, b, c, d, bias_ptr, rows, outputs, x_stride,
    WIDTH: tl.constexpr, SPANS: tl.constexpr, GROUP: tl.constexpr, GROUPS: tl.constexpr, SHIFTS: tl.constexpr,
    TILES: tl.constexpr, NUMBERS: tl.constexpr, LIFT: tl.constexpr, LOOKUP: tl.constexpr, SCALES: tl.constexpr,
    QUICK: tl.constexpr, ROWS: tl.constexpr, OUTPUTS: tl.constexpr, TERMS: tl.constexpr, EVEN: tl.constexpr,
    BIAS: tl.constexpr, PRECISION: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """out [TERMS, rows, outputs], whose sum is x [rows, WIDTH] times the matrix, which is the left side of the tensor
    cores. Columns come in one order: a row's bits do not depend on the rows beside it. With several terms SPANS spans
    divide WIDTH // TERMS; EVEN: they do, and OUTPUTS divides outputs."""
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
        WIDTH, SPANS, GROUP, GROUPS, SHIFTS, TILES, NUMBERS, LIFT, LOOKUP, SCALES, QUICK, EVEN, PRECISION,
    )  # fmt: skip
    store_terms(out_ptr, bias_ptr, acc, term, row, output, rows, outputs, BIAS)

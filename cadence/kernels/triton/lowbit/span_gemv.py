"""A linear map of one row by a matrix in planes of words (`span_planes`), alone or together with the norm before and
the gate after it. As `gemv4`, of which it has the order of work; a thread takes 64 columns at a time, and x becomes
whole numbers of 16 bits, as fine as the largest of those allows.

LOAD, VALUES and SCALES are the decoders of a type (`span_decoders`); the kernel is compiled anew for every type.
"""

# ruff: noqa: N803 - capitals mark compile-time constants, also where they are not annotated
from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from cadence.kernels.triton.common.launch import quick
from cadence.kernels.triton.linear.gemv import rows_of, store_outputs
from cadence.kernels.triton.lowbit.few_bits_gemv import LARGEST, apart, eight, entering_eight
from cadence.kernels.triton.lowbit.span_decoders import regrouped

# The sum of sixteen products: bytes by numbers of which the high bytes come next, then the low ones.
_SIXTEEN = """
    {
    .reg .b32 a;
    dp4a.BYTES.s32 a, $1, $5, 0;
    dp4a.BYTES.s32 a, $2, $6, a;
    dp4a.BYTES.s32 a, $3, $7, a;
    dp4a.BYTES.s32 a, $4, $8, a;
    shl.b32 a, a, 8;
    dp4a.BYTES.u32 a, $1, $9, a;
    dp4a.BYTES.u32 a, $2, $10, a;
    dp4a.BYTES.u32 a, $3, $11, a;
    dp4a.BYTES.u32 $0, $4, $12, a;
    }
    """
_SIXTEEN_PLAIN: tl.constexpr = tl.constexpr(_SIXTEEN.replace("BYTES", "u32"))
_SIXTEEN_SIGNED: tl.constexpr = tl.constexpr(_SIXTEEN.replace("BYTES", "s32"))


@triton.jit
def _sixteen(words, first, last, SIGNED, QUICK):
    """words: of both halves, for first columns and last. first, last: highs and lows, as in `eight`"""
    one, two, three, four = words
    if QUICK:
        ASM: tl.constexpr = _SIXTEEN_SIGNED if SIGNED else _SIXTEEN_PLAIN
        highs, lows = first
        last_highs, last_lows = last
        return tl.inline_asm_elementwise(
            ASM, "=r,r,r,r,r,r,r,r,r,r,r,r,r",
            [one, two, three, four, highs[0], highs[1], last_highs[0], last_highs[1],
             lows[0], lows[1], last_lows[0], last_lows[1]],
            dtype=tl.int32, is_pure=True, pack=1,
        )  # fmt: skip
    return eight(one, two, *first, SIGNED, QUICK) + eight(three, four, *last, SIGNED, QUICK)


@triton.jit
def _of_spans(sums):
    """[n, 2 * SPANS] -> [n, SPANS]"""
    LINES: tl.constexpr = sums.shape[0]
    WORDS: tl.constexpr = sums.shape[1]
    return tl.sum(tl.reshape(sums, [LINES, WORDS // 2, 2]), 2)


@triton.jit
def _sums(zero, one, numbers, GROUP, SIGNED, QUICK):
    """[n, SPANS, groups]: words of values of groups 0 and 1 of 32, as `_sixteen` has them, times whole numbers"""
    LINES: tl.constexpr = zero[0].shape[0]
    SPANS: tl.constexpr = zero[0].shape[1] // 2
    if GROUP == 32:
        first = _of_spans(_sixteen(zero, *numbers[0], SIGNED, QUICK))
        found = tl.join(first, _of_spans(_sixteen(one, *numbers[1], SIGNED, QUICK)))
    else:
        first, last = numbers[0]
        next_first, next_last = numbers[1]
        a = _of_spans(eight(zero[0], zero[1], *first, SIGNED, QUICK))
        b = _of_spans(eight(one[0], one[1], *next_first, SIGNED, QUICK))
        c = _of_spans(eight(zero[2], zero[3], *last, SIGNED, QUICK))
        d = _of_spans(eight(one[2], one[3], *next_last, SIGNED, QUICK))
        found = tl.join(tl.join(a, b), tl.join(c, d))
    return tl.reshape(found, [LINES, SPANS, 64 // GROUP])


@triton.jit
def _entered(x_ptr, residual_ptr, total_ptr, norm_ptr, writes, FIRST, HALF, WIDTH, SPANS, NORM):
    """Columns of a half: eight of each of its words [4 * SPANS]."""
    word = tl.arange(0, 4 * SPANS)
    pair = (FIRST + word // 4) * 32 + HALF * 4 + word % 4
    return entering_eight(x_ptr, residual_ptr, total_ptr, norm_ptr, pair, writes, WIDTH, NORM)


@triton.jit
def _as_bytes(columns, many, QUICK):
    """-> words of high bytes and of low ones, of first columns; and of last, each of groups 0 and 1, [1, 2 * SPANS]"""
    a, b, c, d, e, f, g, h = columns
    high, low = apart(a * many, e * many, b * many, f * many, QUICK)
    last_high, last_low = apart(c * many, g * many, d * many, h * many, QUICK)
    return (
        regrouped(high[None, :], QUICK), regrouped(low[None, :], QUICK),
        regrouped(last_high[None, :], QUICK), regrouped(last_low[None, :], QUICK),
    )  # fmt: skip


@triton.jit
def _of_group(one, two, GROUP):
    """What `_as_bytes` gave of both halves -> of first columns and of last, high bytes and low ones of both halves"""
    first = (one[0][GROUP], two[0][GROUP]), (one[1][GROUP], two[1][GROUP])
    return first, ((one[2][GROUP], two[2][GROUP]), (one[3][GROUP], two[3][GROUP]))


@triton.jit
def _whole_numbers(x_ptr, residual_ptr, total_ptr, norm_ptr, writes, FIRST, WIDTH, SPANS, NORM, QUICK):
    """What spans [FIRST, FIRST + SPANS) are multiplied by: of groups 0 and 1 what `_of_group` gives; the unit of each
    span [SPANS]; and the sum of the stream's squares [4 * SPANS]."""
    one, most, odd, squares = _entered(
        x_ptr, residual_ptr, total_ptr, norm_ptr, writes, FIRST, 0, WIDTH, SPANS, NORM
    )  # fmt: skip
    two, most_two, odd_two, squares_two = _entered(
        x_ptr, residual_ptr, total_ptr, norm_ptr, writes, FIRST, 1, WIDTH, SPANS, NORM
    )  # fmt: skip
    most = tl.max(tl.reshape(tl.maximum(most, most_two), [SPANS, 4]), 1)
    odd = tl.sum(tl.reshape(odd + odd_two, [SPANS, 4]), 1) * 0.0  # 0, or NaN
    many = tl.where(most > 0.0, LARGEST / most, 0.0)
    many = tl.reshape(tl.broadcast_to(many[:, None], [SPANS, 4]), [4 * SPANS])
    halves = _as_bytes(one, many, QUICK), _as_bytes(two, many, QUICK)
    numbers = _of_group(halves[0], halves[1], 0), _of_group(halves[0], halves[1], 1)
    return numbers, most / LARGEST + odd, squares + squares_two


@triton.jit
def _of_x(numbers, GROUP, SPANS, QUICK):
    """Sums of whole numbers [1, SPANS, groups]"""
    ones = tl.full([1, 2 * SPANS], 0x01010101, tl.int32)
    words = (ones, ones, ones, ones)
    return _sums(words, words, numbers, GROUP, False, QUICK)


@triton.jit
def _in_units(sums, unit, GROUPS):
    """[n, SPANS, groups], in units of spans [SPANS] -> [n, blocks, GROUPS]. (Units that were repeated for groups first
    would lie in several threads each: a sum over groups, compiled for an H200, then took them more than once.)"""
    LINES: tl.constexpr = sums.shape[0]
    ALL: tl.constexpr = sums.shape[1] * sums.shape[2]
    return tl.reshape(sums.to(tl.float32) * unit[None, :, None], [LINES, ALL // GROUPS, GROUPS])


@triton.jit
def _scaled(sums, unit, of_x, held, GROUPS, ZERO, SHIFTS):
    """sums [ROWS, SPANS, groups] of values times x; held: what SCALES gave -> [ROWS, blocks]"""
    codes, least, factor, least_factor = held
    if ZERO:
        sums -= of_x * ZERO
    found = tl.sum(_in_units(sums, unit, GROUPS) * codes, 2) * factor
    if SHIFTS:
        found -= tl.sum(_in_units(of_x, unit, GROUPS) * least, 2) * least_factor
    return found


@triton.jit
def _words_of(held, VALUES, GROUP, QUICK):
    """As `_sixteen` has them."""
    one, three = VALUES(held, 0, GROUP, QUICK)
    two, four = VALUES(held, 1, GROUP, QUICK)
    return one, two, three, four


@triton.jit
def _times(held, scales, numbers, unit, of_x, VALUES, GROUP, GROUPS, ZERO, SIGNED, SHIFTS, QUICK):
    """What LOAD and SCALES gave, times whole numbers -> [ROWS, blocks]"""
    zero, one = _words_of(held, VALUES, 0, QUICK), _words_of(held, VALUES, 1, QUICK)
    sums = _sums(zero, one, numbers, GROUP, SIGNED, QUICK)
    return _scaled(sums, unit, of_x, scales, GROUPS, ZERO, SHIFTS)


@quick
@triton.jit
def span_gemv(
    out_ptr, total_ptr, x_ptr, residual_ptr, norm_ptr, a, b, c, d, bias_ptr, eps, outputs,
    WIDTH: tl.constexpr, PARTS: tl.constexpr, ROWS: tl.constexpr, SPANS: tl.constexpr, GROUP: tl.constexpr,
    GROUPS: tl.constexpr, ZERO: tl.constexpr, SIGNED: tl.constexpr, SHIFTS: tl.constexpr, LOAD: tl.constexpr,
    VALUES: tl.constexpr, SCALES: tl.constexpr, NORM: tl.constexpr, GATE: tl.constexpr, BIAS: tl.constexpr,
    QUICK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """out [outputs] = weight times x [WIDTH]; with NORM, times rms_norm(x + residual), whose sum goes to `total`.

    a .. d: planes of the weight. GROUPS of GROUP columns are a block. ZERO: what stands for 0 in its bytes, which are
    SIGNED or not; SHIFTS: something is subtracted from what is scaled. GATE "silu" or "gelu": 2 * outputs rows (g, u),
    and out is activate(g) * u. A program takes PARTS times ROWS rows; several PARTS where SPANS hold all columns, of
    which whole numbers are then made once.
    """
    GATED: tl.constexpr = GATE != ""
    BLOCK: tl.constexpr = GROUP * GROUPS
    BLOCKS: tl.constexpr = SPANS * 64 // BLOCK
    begin, is_first = tl.program_id(0) * PARTS, tl.program_id(0) == 0
    row, exists = rows_of(begin, outputs, ROWS, GATED)
    held = LOAD(a, b, row.to(tl.int64), exists, 0, WIDTH, SPANS)
    scales = SCALES(c, d, row.to(tl.int64), exists, 0, WIDTH, SPANS, BLOCK, GROUP)
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    squares = tl.zeros([4 * SPANS], tl.float32)
    for part in tl.static_range(PARTS):
        row, exists = rows_of(begin + part, outputs, ROWS, GATED)
        sums = tl.zeros([ROWS, BLOCKS], tl.float32)
        for start in tl.static_range(0, WIDTH // 64, SPANS):
            if part == 0:
                numbers, unit, squared = _whole_numbers(
                    x_ptr, residual_ptr, total_ptr, norm_ptr, is_first, start, WIDTH, SPANS, NORM, QUICK
                )
                of_x = _of_x(numbers, GROUP, SPANS, QUICK)
                squares += squared
            mine, times = held, scales
            if start + SPANS < WIDTH // 64:
                held = LOAD(a, b, row.to(tl.int64), exists, start + SPANS, WIDTH, SPANS)
                scales = SCALES(c, d, row.to(tl.int64), exists, start + SPANS, WIDTH, SPANS, BLOCK, GROUP)
            elif part + 1 < PARTS:
                below, there = rows_of(begin + part + 1, outputs, ROWS, GATED)
                held = LOAD(a, b, below.to(tl.int64), there, 0, WIDTH, SPANS)
                scales = SCALES(c, d, below.to(tl.int64), there, 0, WIDTH, SPANS, BLOCK, GROUP)
            sums += _times(mine, times, numbers, unit, of_x, VALUES, GROUP, GROUPS, ZERO, SIGNED, SHIFTS, QUICK)
        result = tl.sum(sums, 1)
        if NORM:
            if part == 0:
                factor = 1.0 / tl.sqrt(tl.sum(squares, 0) / WIDTH + eps)
            result *= factor
        store_outputs(out_ptr, bias_ptr, result, row, exists, begin + part, outputs, GATE, BIAS)

"""A linear map of one row by a matrix of four bits, alone or together with the norm before and the gate after it.

As `gemv`, of which it has the order of work; a thread takes sixteen bytes at a time, which have one scale, or two. What
they are multiplied by becomes whole numbers of 16 bits, as fine as the largest of its 32 columns allows: sums of
products are exact, and take an eighth of the instructions that floats do (on an H200 the bytes arrive faster than
they can be turned into floats). So it is of codes into a table, whose numbers become whole ones too.
"""

# ruff: noqa: N803 - capitals mark compile-time constants, also where they are not annotated
from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from cadence.kernels.interface.ops import Pair
from cadence.kernels.triton.common.launch import quick
from cadence.kernels.triton.common.private import is_interpreted
from cadence.kernels.triton.linear.gemv import Entry, room_for, rows_of, store_outputs
from cadence.kernels.triton.lowbit.few_bits import Stored
from cadence.kernels.triton.lowbit.few_bits_table import eight_of_table, unit_of_table, words_of_whole

_ROUNDS: tl.constexpr = tl.constexpr(
    12582912.0
)  # 1.5 * 2**23: a number added to it is rounded, and lies in its last bits
LARGEST: tl.constexpr = tl.constexpr(32767.0)
_LARGEST_SIGNED: tl.constexpr = tl.constexpr(32639.0)  # of numbers whose low byte has a sign as well

# Four numbers of 16 bits, each in the last bits of a word -> their high bytes, and their low ones.
_APART: tl.constexpr = tl.constexpr(
    """
    {
    .reg .b32 a, b;
    prmt.b32 a, $2, $3, 0x5410;
    prmt.b32 b, $4, $5, 0x5410;
    prmt.b32 $0, a, b, 0x7531;
    prmt.b32 $1, a, b, 0x6420;
    }
    """
)
# The sum of eight products: bytes of $1 and $2 by numbers whose high bytes are in $3 and $4, the low ones in $5 and $6.
_EIGHT = """
    {
    .reg .b32 a;
    dp4a.BYTES.s32 a, $1, $3, 0;
    dp4a.BYTES.s32 a, $2, $4, a;
    shl.b32 a, a, 8;
    dp4a.BYTES.u32 a, $1, $5, a;
    dp4a.BYTES.u32 $0, $2, $6, a;
    }
    """
_EIGHT_PLAIN: tl.constexpr = tl.constexpr(_EIGHT.replace("BYTES", "u32"))
_EIGHT_SIGNED: tl.constexpr = tl.constexpr(_EIGHT.replace("BYTES", "s32"))


@triton.jit
def _two(ptr, pair, inside):
    """Columns 2 * pair and 2 * pair + 1, each [n] float32."""
    TYPE: tl.constexpr = ptr.dtype.element_ty
    if TYPE.primitive_bitwidth == 16:
        both = tl.load(ptr.to(tl.pointer_type(tl.int32)) + pair, inside, other=0)
        first, second = both.to(tl.int16).to(TYPE, bitcast=True), (both >> 16).to(tl.int16).to(TYPE, bitcast=True)
    else:
        first = tl.load(ptr + 2 * pair, inside, other=0.0)
        second = tl.load(ptr + 2 * pair + 1, inside, other=0.0)
    return first.to(tl.float32), second.to(tl.float32)


@triton.jit
def _store_two(ptr, pair, first, second, inside):
    """first and second [n], of ptr's type."""
    if ptr.dtype.element_ty.primitive_bitwidth == 16:
        low = first.to(tl.int16, bitcast=True).to(tl.int32) & 0xFFFF
        high = second.to(tl.int16, bitcast=True).to(tl.int32) << 16
        tl.store(ptr.to(tl.pointer_type(tl.int32)) + pair, low | high, inside)
    else:
        tl.store(ptr + 2 * pair, first, inside)
        tl.store(ptr + 2 * pair + 1, second, inside)


@triton.jit
def entering_two(x_ptr, residual_ptr, total_ptr, norm_ptr, pair, writes, WIDTH, NORM):
    """Two columns of what is multiplied, but for the norm's common factor; and the sum of the stream's squares."""
    inside = pair < WIDTH // 2
    a, b = _two(x_ptr, pair, inside)
    squares = 0.0
    if NORM:
        TYPE: tl.constexpr = total_ptr.dtype.element_ty
        c, d = _two(residual_ptr, pair, inside)
        a, b = (a + c).to(TYPE), (b + d).to(TYPE)  # the norm is taken of the sum as it is stored
        _store_two(total_ptr, pair, a, b, inside & writes)
        a, b = a.to(tl.float32), b.to(tl.float32)
        squares = a * a + b * b
        c, d = _two(norm_ptr, pair, inside)
        a, b = a * c, b * d
    return a, b, squares


@triton.jit
def entering_eight(x_ptr, residual_ptr, total_ptr, norm_ptr, pair, writes, WIDTH, NORM):
    """Two columns of each of four runs of 16, the first at `pair`; their largest and their sum; and the sum of the
    stream's squares."""
    a, b, ab = entering_two(x_ptr, residual_ptr, total_ptr, norm_ptr, pair, writes, WIDTH, NORM)
    c, d, cd = entering_two(x_ptr, residual_ptr, total_ptr, norm_ptr, pair + 8, writes, WIDTH, NORM)
    e, f, ef = entering_two(x_ptr, residual_ptr, total_ptr, norm_ptr, pair + 16, writes, WIDTH, NORM)
    g, h, gh = entering_two(x_ptr, residual_ptr, total_ptr, norm_ptr, pair + 24, writes, WIDTH, NORM)
    most = tl.maximum(tl.maximum(tl.abs(a), tl.abs(b)), tl.maximum(tl.abs(c), tl.abs(d)))
    most = tl.maximum(most, tl.maximum(tl.maximum(tl.abs(e), tl.abs(f)), tl.maximum(tl.abs(g), tl.abs(h))))
    return (a, b, c, d, e, f, g, h), most, a + b + c + d + e + f + g + h, ab + cd + ef + gh


@triton.jit
def apart(a, b, c, d, QUICK):
    """Four numbers of at most 16 bits, as floats, each rounded -> words of their high bytes and of their low ones."""
    a = (a + _ROUNDS).to(tl.int32, bitcast=True)
    b = (b + _ROUNDS).to(tl.int32, bitcast=True)
    c = (c + _ROUNDS).to(tl.int32, bitcast=True)
    d = (d + _ROUNDS).to(tl.int32, bitcast=True)
    if QUICK:
        return tl.inline_asm_elementwise(
            _APART, "=r,=r,r,r,r,r", [a, b, c, d], dtype=(tl.int32, tl.int32), is_pure=True, pack=1
        )
    high = (a >> 8 & 255) | (b >> 8 & 255) << 8 | (c >> 8 & 255) << 16 | (d >> 8 & 255) << 24
    return high, (a & 255) | (b & 255) << 8 | (c & 255) << 16 | (d & 255) << 24


@triton.jit
def _four(bytes4, high, low, SIGNED):
    """The sum of four products, in plain steps."""
    total = bytes4 * 0
    for place in tl.static_range(0, 32, 8):
        if SIGNED:
            byte = (bytes4 << (24 - place)) >> 24
        else:
            byte = bytes4 >> place & 255
        total += byte * (((high << (24 - place)) >> 24) * 256 + (low >> place & 255))
    return total


@triton.jit
def eight(one, two, highs, lows, SIGNED, QUICK):
    """The sum of eight products: two words of bytes by numbers whose high and low bytes are given, each for the first
    word and for the second."""
    if QUICK:
        ASM: tl.constexpr = _EIGHT_SIGNED if SIGNED else _EIGHT_PLAIN
        return tl.inline_asm_elementwise(
            ASM, "=r,r,r,r,r,r,r", [one, two, highs[0], highs[1], lows[0], lows[1]], dtype=tl.int32, is_pure=True,
            pack=1,
        )  # fmt: skip
    return _four(one, highs[0], lows[0], SIGNED) + _four(two, highs[1], lows[1], SIGNED)


@triton.jit
def _scaled(sums, of_x, unit, at, zero_at, exists, group, stride, GROUPS, ZEROS):
    """sums [ROWS, n] of quants times x, of_x [n] of x alone, both in units of x -> of values times x."""
    zero = 8.0
    if ZEROS:
        zero = _scale(zero_at, exists, group, stride, GROUPS)
    scale = _scale(at, exists, group, stride, GROUPS)
    return (sums.to(tl.float32) - zero * of_x.to(tl.float32)[None, :]) * (scale * unit[None, :])


@triton.jit
def _scale(at, exists, group, stride, GROUPS):
    """[ROWS, n]"""
    inside = exists[:, None] & (group < GROUPS)[None, :]
    return tl.load(at[:, None] + group[None, :] * stride, inside, other=0.0)


@triton.jit
def _words(weight_ptr, row, exists, FIRST, WIDTH, WORDS):
    """Words [FIRST, FIRST + WORDS) of rows [ROWS] of the weight."""
    place = FIRST + tl.arange(0, WORDS)
    inside = exists[:, None] & (place < WIDTH // 8)[None, :]
    at = weight_ptr + row.to(tl.int64)[:, None] * (WIDTH // 8) + place[None, :]
    return tl.load(at, inside, other=0, eviction_policy="evict_first")


@triton.jit
def _by_threads(values, LINES, WORDS):
    """[LINES, WORDS] -> sums over the four words of a thread"""
    return tl.sum(tl.reshape(values, [LINES, WORDS // 4, 4]), 2)


@triton.jit
def _signed_apart(a, b, c, d, QUICK):
    """As `apart`, with signed low bytes."""
    high, low = apart(a + 128.0, b + 128.0, c + 128.0, d + 128.0, QUICK)
    return high, low ^ -0x7F7F7F80  # 0x80808080


@triton.jit
def whole_numbers(x_ptr, residual_ptr, total_ptr, norm_ptr, writes, FIRST, WIDTH, WORDS, TABLE, NORM, QUICK):
    """What words [FIRST, FIRST + WORDS) are multiplied by: high and low bytes, of the columns in the low halves of a
    word's bytes and of those in the high ones, each [1, WORDS]; the unit of each thread's [WORDS / 4]; and the sum of
    the stream's squares [WORDS]. With a TABLE low bytes have a sign, and columns are those of the low half of a word
    and those of its high half."""
    word = FIRST + tl.arange(0, WORDS)
    pair = word // 8 * 32 + word % 8  # of columns; the others of this word are 16, 32 and 48 columns further
    columns, most, sums, squares = entering_eight(
        x_ptr, residual_ptr, total_ptr, norm_ptr, pair, writes, WIDTH, NORM
    )  # fmt: skip
    a, b, c, d, e, f, g, h = columns
    most = tl.max(tl.reshape(most, [WORDS // 4, 4]), 1)
    odd = tl.sum(tl.reshape(sums, [WORDS // 4, 4]), 1) * 0.0  # 0, or NaN
    TOP: tl.constexpr = _LARGEST_SIGNED if TABLE else LARGEST
    many = tl.where(most > 0.0, TOP / most, 0.0)
    many = tl.reshape(tl.broadcast_to(many[:, None], [WORDS // 4, 4]), [WORDS])
    if TABLE:
        low_x, low_rest = _signed_apart(a * many, c * many, e * many, g * many, QUICK)
        high_x, high_rest = _signed_apart(b * many, d * many, f * many, h * many, QUICK)
    else:
        low_x, low_rest = apart(a * many, e * many, b * many, f * many, QUICK)
        high_x, high_rest = apart(c * many, g * many, d * many, h * many, QUICK)
    bytes4 = (low_x[None, :], high_x[None, :], low_rest[None, :], high_rest[None, :])
    return bytes4, most / TOP + odd, squares


@triton.jit
def _times(
    tile, numbers, unit, scale_at, zero_at, exists, group_stride, FIRST, WIDTH, GROUP, ZEROS, QUICK, ROWS, WORDS,
):  # fmt: skip
    """tile [ROWS, WORDS] times what `whole_numbers` gave -> [ROWS, WORDS / 4]"""
    highs, lows = (numbers[0], numbers[1]), (numbers[2], numbers[3])
    low = tile & 0x0F0F0F0F
    high = tile >> 4 & 0x0F0F0F0F
    ones = tl.full([1, WORDS], 0x01010101, tl.int32)
    group = (FIRST + tl.arange(0, WORDS // 4) * 4) // 8 * 64 // GROUP  # of a thread's first columns
    GROUPS: tl.constexpr = WIDTH // GROUP
    both = _by_threads(eight(low, high, highs, lows, False, QUICK), ROWS, WORDS)
    of_x = tl.sum(_by_threads(eight(ones, ones, highs, lows, False, QUICK), 1, WORDS), 0)
    if GROUP == 32:  # columns up to 31 are in the first and third bytes
        low, high, ones = low & 0x00FF00FF, high & 0x00FF00FF, ones & 0x00FF00FF
        one = _by_threads(eight(low, high, highs, lows, False, QUICK), ROWS, WORDS)
        of_one = tl.sum(_by_threads(eight(ones, ones, highs, lows, False, QUICK), 1, WORDS), 0)
        first = _scaled(one, of_one, unit, scale_at, zero_at, exists, group, group_stride, GROUPS, ZEROS)
        second = both - one, of_x - of_one
        return first + _scaled(*second, unit, scale_at, zero_at, exists, group + 1, group_stride, GROUPS, ZEROS)
    return _scaled(both, of_x, unit, scale_at, zero_at, exists, group, group_stride, GROUPS, ZEROS)


@triton.jit
def _times_table(
    tile, numbers, unit, scale_at, exists, group_stride, table_ptr, words, FIRST, WIDTH, GROUP, QUICK, ROWS, WORDS,
):  # fmt: skip
    """As `_times`, in units of the table."""
    group = (FIRST + tl.arange(0, WORDS // 4) * 4) // 8 * 64 // GROUP
    sums = _by_threads(eight_of_table(tile, numbers, table_ptr, words, QUICK), ROWS, WORDS)
    return sums.to(tl.float32) * (_scale(scale_at, exists, group, group_stride, WIDTH // GROUP) * unit[None, :])


@quick
@triton.jit
def gemv4(
    out_ptr, total_ptr, x_ptr, residual_ptr, norm_ptr, weight_ptr, scale_ptr, zero_ptr, bias_ptr, eps, outputs,
    row_stride, group_stride, table_ptr,
    WIDTH: tl.constexpr, PARTS: tl.constexpr, ROWS: tl.constexpr, WORDS: tl.constexpr, GROUP: tl.constexpr,
    ZEROS: tl.constexpr, TABLE: tl.constexpr, NORM: tl.constexpr, GATE: tl.constexpr, BIAS: tl.constexpr,
    QUICK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """out [outputs] = weight times x [WIDTH]; with NORM, times rms_norm(x + residual), whose sum goes to `total`.

    weight [outputs, WIDTH / 8] int32, scale and zero [outputs, WIDTH / GROUP], TABLE: as `Stored`. GATE "silu" or
    "gelu": 2 * outputs rows (g, u), and out is activate(g) * u. A program takes PARTS times ROWS rows; several PARTS
    where WORDS hold all columns, of which whole numbers are then made once.
    """
    GATED: tl.constexpr = GATE != ""
    begin, first = tl.program_id(0) * PARTS, tl.program_id(0) == 0
    row, exists = rows_of(begin, outputs, ROWS, GATED)
    tile = _words(weight_ptr, row, exists, 0, WIDTH, WORDS)
    words = words_of_whole(table_ptr, TABLE)
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    squares = tl.zeros([WORDS], tl.float32)
    for part in tl.static_range(PARTS):
        row, exists = rows_of(begin + part, outputs, ROWS, GATED)
        scale_at = scale_ptr + row.to(tl.int64) * row_stride
        zero_at = zero_ptr + row.to(tl.int64) * row_stride
        sums = tl.zeros([ROWS, WORDS // 4], tl.float32)
        for start in tl.static_range(0, WIDTH // 8, WORDS):
            if part == 0:
                numbers, unit, squared = whole_numbers(
                    x_ptr, residual_ptr, total_ptr, norm_ptr, first, start, WIDTH, WORDS, TABLE, NORM, QUICK
                )
                squares += squared
            mine = tile
            if start + WORDS < WIDTH // 8:
                tile = _words(weight_ptr, row, exists, start + WORDS, WIDTH, WORDS)
            elif part + 1 < PARTS:
                tile = _words(weight_ptr, *rows_of(begin + part + 1, outputs, ROWS, GATED), 0, WIDTH, WORDS)
            if TABLE:
                sums += _times_table(
                    mine, numbers, unit, scale_at, exists, group_stride, table_ptr, words,
                    start, WIDTH, GROUP, QUICK, ROWS, WORDS,
                )  # fmt: skip
            else:
                sums += _times(
                    mine, numbers, unit, scale_at, zero_at, exists, group_stride,
                    start, WIDTH, GROUP, ZEROS, QUICK, ROWS, WORDS,
                )  # fmt: skip
        result = tl.sum(sums, 1)
        if TABLE:
            result *= unit_of_table(table_ptr)
        if NORM:
            if part == 0:
                factor = 1.0 / tl.sqrt(tl.sum(squares, 0) / WIDTH + eps)
            result *= factor
        store_outputs(out_ptr, bias_ptr, result, row, exists, begin + part, outputs, GATE, BIAS)


@dataclass(frozen=True, slots=True)
class OneTile:
    rows: int
    columns: int  # at a time; 1024 take one warp
    parts: int = 1  # times so many rows, where all columns are taken at a time


def choose_one(width: int) -> OneTile:
    """What was fastest on an H200."""
    return OneTile(8, 4096, 2) if width <= 4096 else OneTile(8, 8192)


def one_token(
    x: torch.Tensor,
    weight: Stored,
    bias: torch.Tensor | None,
    entry: Entry | None,
    gate: str,
    pdl: bool,
    tile: OneTile | None = None,
) -> Pair:
    """x [1, in] -> (out [1, rows], or half of that with a gate, and x + residual)."""
    x, width = x.contiguous(), weight.cols
    out, total, residual, norm, eps = room_for(x, weight.rows, entry, gate)
    outputs = out.shape[1]
    tile = tile or choose_one(width)
    words = min(tile.columns, triton.next_power_of_2(width)) // 8
    parts = tile.parts if 8 * words >= width else 1
    taken = parts * (tile.rows // 2 if gate else tile.rows)
    gemv4[(triton.cdiv(outputs, taken),)](
        out, total, x, residual, norm, weight.values.view(torch.int32), weight.scales,
        weight.zeros if len(weight.zeros) else weight.scales, weight.scales if bias is None else bias, eps, outputs,
        *weight.scales.stride(), weight.table.words if weight.table.exists else weight.scales,
        WIDTH=width, PARTS=parts, ROWS=tile.rows, WORDS=words, GROUP=weight.group, ZEROS=len(weight.zeros) > 0,
        TABLE=weight.table.exists, NORM=entry is not None, GATE=gate, BIAS=bias is not None, QUICK=not is_interpreted(),
        PDL=pdl, num_warps=max(words // 128, 1), launch_pdl=pdl,
    )  # fmt: skip
    return out, total

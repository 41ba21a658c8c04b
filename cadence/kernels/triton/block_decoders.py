"""What the blocks of GGUF types stand for, in registers. Of every type there are two functions:

numbers(a, b, c, d, table, at, part, i)  [R, N, G] float32: number i of group `part` of block `at`
scales(a, b, c, d, at, part)             what numbers of a group are times, and what is subtracted then

a .. d are the planes of `block_planes`, in the order of its fields. at [R, N] int64 counts blocks from the first of the
matrix, part [1, N] groups in their block; for `numbers` both have a last dimension of 1, and i is [1, 1, G]. Every
product is rounded alone, in the order that the format prescribes.
"""

# ruff: noqa: N803 - capitals mark compile-time constants
from __future__ import annotations

import triton
import triton.language as tl

from cadence.core.block_grids import IQ4_VALUES


def _word(values: tuple[int, ...]) -> int:
    """Eight bytes, the first in the lowest bits, as a number with a sign."""
    return int.from_bytes(bytes(value & 255 for value in values), "little", signed=True)


_IQ4_FIRST: tl.constexpr = tl.constexpr(_word(IQ4_VALUES[:8]))
_IQ4_LAST: tl.constexpr = tl.constexpr(_word(IQ4_VALUES[8:]))


@triton.jit
def half_of(byte, second):
    """The low four bits, or the high ones."""
    return (byte.to(tl.int32) >> (4 * second)) & 15


@triton.jit
def negated(value, bits, place):
    """value, negative where the bit at `place` is set."""
    return tl.where((bits >> place) & 1 != 0, -value, value)


@triton.jit
def even_bits(seven):
    """Seven bits -> eight, of which an even number is set."""
    folded = seven ^ (seven >> 4)
    folded ^= folded >> 2
    return seven | (((folded ^ (folded >> 1)) & 1) << 7)


@triton.jit
def grid_entry(table, index, place, VALUES: tl.constexpr):
    return tl.load(table + index * VALUES + place).to(tl.float32)


@triton.jit
def iq4_value(code):
    """An entry of IQ4_VALUES, whose bytes lie in two words."""
    eight = tl.where(code < 8, _IQ4_FIRST, _IQ4_LAST) >> ((code & 7) * 8).to(tl.int64)
    return eight.to(tl.int8).to(tl.float32)


@triton.jit
def fp4_value(code):
    """Twice what a code of E2M1 stands for."""
    exponent, rest = (code >> 1) & 3, code & 1
    size = tl.where(exponent == 0, rest, (2 | rest) << tl.maximum(exponent - 1, 0)).to(tl.float32)
    return tl.where(code >= 8, -size, size)


@triton.jit
def of_block(plane, at, COUNT: tl.constexpr, PLACE: tl.constexpr):
    """The number at PLACE among COUNT of a block."""
    return tl.load(plane + at * COUNT + PLACE).to(tl.float32)


@triton.jit
def _span(at, column, SPANS: tl.constexpr):
    """Of a column of block `at`, which has so many spans of 64: its span, its run of 16 and its place in that."""
    return at * SPANS + column // 64, column % 64 // 16, column % 16


@triton.jit
def _four_bits(plane, at, column, SPANS: tl.constexpr):
    span, run, place = _span(at, column, SPANS)
    return half_of(tl.load(plane + span * 32 + (place * 2 + run // 2)), run % 2)


@triton.jit
def _two_bits(plane, at, column, SPANS: tl.constexpr):
    span, run, place = _span(at, column, SPANS)
    return tl.load(plane + span * 16 + place).to(tl.int32) >> (2 * run) & 3


@triton.jit
def _one_bit(plane, at, column, SPANS: tl.constexpr):
    span, run, place = _span(at, column, SPANS)
    return tl.load(plane + span * 8 + place % 8).to(tl.int32) >> (place // 8 * 4 + run) & 1


@triton.jit
def of_group(plane, at, part, COUNT: tl.constexpr):
    """The number of a group, of which a block has COUNT."""
    return tl.load(plane + at * COUNT + part).to(tl.float32)


@triton.jit
def q8_0(a, b, c, d, table, at, part, i):
    word = i % 16 // 8 * 8 + part * 4 + i % 8 // 4 * 2 + i // 16
    return tl.load(a + at * 64 + (word * 4 + i % 4)).to(tl.float32)


@triton.jit
def bytes_of_128(a, b, c, d, table, at, part, i):
    return tl.load(a + at * 128 + (part * 32 + i)).to(tl.float32)


@triton.jit
def fp4_16(a, b, c, d, table, at, part, i):
    return fp4_value(_four_bits(a, at, part * 16 + i, 1))


@triton.jit
def fp4_32(a, b, c, d, table, at, part, i):
    return fp4_value(_four_bits(a, at, part * 32 + i, 1))


@triton.jit
def pair_of_scales(a, b, c, d, at, part):
    """Of types with one for each group of 32 of a span, in the second plane."""
    return of_group(b, at, part, 2), 0.0


@triton.jit
def four_scales(a, b, c, d, at, part):
    return of_group(b, at, part, 4), 0.0


@triton.jit
def one_scale(a, b, c, d, at, part):
    """Of types with one for each block, and nothing else in the second plane."""
    return of_block(b, at, 1, 0), 0.0


@triton.jit
def q5_0(a, b, c, d, table, at, part, i):
    column = part * 32 + i
    return (_four_bits(a, at, column, 1) + _one_bit(b, at, column, 1) * 16 - 16).to(tl.float32)


@triton.jit
def q5_0_scales(a, b, c, d, at, part):
    return of_group(c, at, part, 2), 0.0


@triton.jit
def q5_1(a, b, c, d, table, at, part, i):
    column = part * 32 + i
    return (_four_bits(a, at, column, 1) + _one_bit(b, at, column, 1) * 16).to(tl.float32)


@triton.jit
def q5_1_scales(a, b, c, d, at, part):
    return of_group(c, at, part, 2), -of_group(d, at, part, 2)


@triton.jit
def q2_k(a, b, c, d, table, at, part, i):
    return _two_bits(a, at, part * 16 + i, 4).to(tl.float32)


@triton.jit
def q2_k_scales(a, b, c, d, at, part):
    both = tl.load(b + at * 16 + part).to(tl.int32)
    return of_block(c, at, 2, 0) * (both & 15).to(tl.float32), of_block(c, at, 2, 1) * (both >> 4).to(tl.float32)


@triton.jit
def q3_k(a, b, c, d, table, at, part, i):
    column = part * 16 + i
    return (_two_bits(a, at, column, 4) + _one_bit(b, at, column, 4) * 4 - 4).to(tl.float32)


@triton.jit
def sixteen_codes(a, b, c, d, at, part):
    return of_block(d, at, 1, 0) * of_group(c, at, part, 16), 0.0


@triton.jit
def q4_k(a, b, c, d, table, at, part, i):
    return _four_bits(a, at, part * 32 + i, 4).to(tl.float32)


@triton.jit
def q4_k_scales(a, b, c, d, at, part):
    """Of eight groups the codes of scales, then those of what is subtracted."""
    return of_block(c, at, 2, 0) * of_group(b, at, part, 16), of_block(c, at, 2, 1) * of_group(b, at, part + 8, 16)


@triton.jit
def q5_k(a, b, c, d, table, at, part, i):
    column = part * 32 + i
    return (_four_bits(a, at, column, 4) + _one_bit(b, at, column, 4) * 16).to(tl.float32)


@triton.jit
def q5_k_scales(a, b, c, d, at, part):
    return of_block(d, at, 2, 0) * of_group(c, at, part, 16), of_block(d, at, 2, 1) * of_group(c, at, part + 8, 16)


@triton.jit
def q6_k(a, b, c, d, table, at, part, i):
    column = part * 16 + i
    return (_four_bits(a, at, column, 4) + _two_bits(b, at, column, 4) * 16 - 32).to(tl.float32)


@triton.jit
def iq4_nl(a, b, c, d, table, at, part, i):
    return iq4_value(_four_bits(a, at, part * 32 + i, 1))


@triton.jit
def iq4_xs(a, b, c, d, table, at, part, i):
    return iq4_value(_four_bits(a, at, part * 32 + i, 4))


@triton.jit
def iq4_xs_scales(a, b, c, d, at, part):
    return of_block(c, at, 1, 0) * of_group(b, at, part, 8), 0.0


@triton.jit
def e8m0_half(exponent):
    """Half of what a code of E8M0 stands for."""
    small = tl.full(exponent.shape, 0x00200000, tl.int32) << tl.minimum(exponent, 1)
    return tl.where(exponent < 2, small, (exponent - 1) << 23).to(tl.float32, bitcast=True)


@triton.jit
def mxfp4_scales(a, b, c, d, at, part):
    return e8m0_half(tl.load(b + at * 2 + part).to(tl.int32)), 0.0


@triton.jit
def e4m3_half(byte):
    """Half of what a code of unsigned E4M3 stands for."""
    exponent, rest = (byte >> 3) & 15, byte & 7
    normal = (((exponent + 120) << 23) | (rest << 20)).to(tl.float32, bitcast=True)
    found = tl.where(exponent == 0, rest.to(tl.float32) * 0.001953125, normal) * 0.5
    return tl.where((byte == 0) | (byte == 127), 0.0, found)


@triton.jit
def nvfp4_scales(a, b, c, d, at, part):
    return e4m3_half(tl.load(b + at * 4 + part).to(tl.int32)), 0.0


@triton.jit
def tq1_0(a, b, c, d, table, at, part, i):
    """Five values a byte, as the digits of a fraction in base three; the last four bytes have four."""
    digit = tl.where(part < 10, part // 2 + i * 0, tl.where(part < 15, part - 10 + i * 0, i // 4))
    place = tl.where(part < 10, part % 2 * 16 + i, tl.where(part < 15, 32 + i, 48 + i % 4))
    power = tl.where(digit == 0, 1, tl.where(digit == 1, 3, tl.where(digit == 2, 9, tl.where(digit == 3, 27, 81))))
    byte = tl.load(a + at * 52 + place).to(tl.int32) * power
    return ((((byte & 255) * 3) >> 8) - 1).to(tl.float32)


@triton.jit
def tq2_0(a, b, c, d, table, at, part, i):
    byte = tl.load(a + at * 64 + (part // 4 * 32 + i)).to(tl.int32)
    return (((byte >> (part % 4 * 2)) & 3) - 1).to(tl.float32)

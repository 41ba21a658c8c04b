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
def of_block(plane, at, COUNT: tl.constexpr, PLACE: tl.constexpr):
    """The number at PLACE among COUNT of a block."""
    return tl.load(plane + at * COUNT + PLACE).to(tl.float32)


@triton.jit
def bytes_of_128(a, b, c, d, table, at, part, i):
    return tl.load(a + at * 128 + (part * 32 + i)).to(tl.float32)


@triton.jit
def one_scale(a, b, c, d, at, part):
    """Of types with one for each block, and nothing else in the second plane."""
    return of_block(b, at, 1, 0), 0.0


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

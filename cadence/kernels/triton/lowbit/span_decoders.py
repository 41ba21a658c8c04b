"""Planes of words (`span_planes`) in registers. Of every type there are three functions:

load(a, b, row, exists, FIRST, WIDTH, SPANS)
    what is read of spans [FIRST, FIRST + SPANS) of rows [ROWS], a tuple
values(held, HALF, GROUP, QUICK)
    of that, values of a half of each span that are in its group GROUP of 32: of the first 16 columns of the group, and
    of the last
scales(c, d, row, exists, FIRST, WIDTH, SPANS, BLOCK, GROUP)
    codes of scales and of what is subtracted, [ROWS, blocks, groups], and a factor of each, [ROWS, blocks]; BLOCK and
    GROUP: columns of a block, and of a group

A span is 64 columns, and a thread has one at a time. Words of values are [ROWS, 2 * SPANS], four bytes each: word
2s + i of half h is for the places 8h + 4i .. 8h + 4i + 3 of 16 columns of span s.
QUICK: by instructions of NVIDIA's GPUs.
"""

# ruff: noqa: N803 - capitals mark compile-time constants, also where they are not annotated
from __future__ import annotations

import triton
import triton.language as tl

from cadence.core.block_grids import FP4_VALUES, IQ4_VALUES

# Eight codes of four bits in a word -> the bytes that they stand for, of the low halves of its bytes and of the high
# ones. A selector picks among eight bytes: once among the first eight, once among the last, and then between the two.
_LOOKUP = """
    {
    .reg .b32 s, p, a, b, c, d, e, f, first, second;
    mov.b32 a, 0xWORD0; mov.b32 b, 0xWORD1; mov.b32 c, 0xWORD2; mov.b32 d, 0xWORD3;
    and.b32 s, $2, 0x77777777;
    shr.u32 p, $2, 1;
    lop3.b32 p, p, 0x44444444, 0x32103210, 0xEA;
    prmt.b32 e, a, b, s;
    prmt.b32 f, c, d, s;
    prmt.b32 first, e, f, p;
    shr.u32 s, s, 16;
    shr.u32 p, p, 16;
    prmt.b32 e, a, b, s;
    prmt.b32 f, c, d, s;
    prmt.b32 second, e, f, p;
    prmt.b32 $0, first, second, 0x6420;
    prmt.b32 $1, first, second, 0x7531;
    }
    """


def _lookup(values: tuple[int, ...]) -> str:
    text = _LOOKUP
    for word in range(4):
        four = bytes(value & 255 for value in values[4 * word : 4 * word + 4])
        text = text.replace(f"WORD{word}", four[::-1].hex())
    return text


def eight_bytes(values: tuple[int, ...]) -> int:
    """Eight bytes, the first in the lowest bits, as a number with a sign."""
    return int.from_bytes(bytes(value & 255 for value in values), "little", signed=True)


_IQ4: tl.constexpr = tl.constexpr(_lookup(IQ4_VALUES))
_IQ4_FIRST: tl.constexpr = tl.constexpr(eight_bytes(IQ4_VALUES[:8]))
_IQ4_LAST: tl.constexpr = tl.constexpr(eight_bytes(IQ4_VALUES[8:]))
_FP4: tl.constexpr = tl.constexpr(_lookup(FP4_VALUES))
_FP4_FIRST: tl.constexpr = tl.constexpr(eight_bytes(FP4_VALUES[:8]))
_FP4_LAST: tl.constexpr = tl.constexpr(eight_bytes(FP4_VALUES[8:]))

# Two words as they lie in memory, with bytes of groups 0 and 1 in turn -> one of group 0, one of group 1.
_REGROUP: tl.constexpr = tl.constexpr("prmt.b32 $0, $2, $3, 0x6420; prmt.b32 $1, $2, $3, 0x7531;")


@triton.jit
def regrouped(words, QUICK: tl.constexpr):
    """words [n, m], as they lie in memory -> those of group 0, those of group 1, each [n, m / 2]"""
    LINES: tl.constexpr = words.shape[0]
    WORDS: tl.constexpr = words.shape[1]
    first, second = tl.split(tl.reshape(words, [LINES, WORDS // 2, 2]))
    if QUICK:
        return tl.inline_asm_elementwise(
            _REGROUP, "=r,=r,r,r", [first, second], dtype=(tl.int32, tl.int32), is_pure=True, pack=1
        )
    even = _two_bytes(first) | _two_bytes(second) << 16
    return even, _two_bytes(first >> 8) | _two_bytes(second >> 8) << 16


@triton.jit
def _two_bytes(word):
    """The first and the third."""
    return (word & 255) | (word >> 8 & 0xFF00)


@triton.jit
def _words(plane, row, exists, FIRST, WIDTH, SPANS, COUNT, PLACE, OF):
    """[ROWS, COUNT * SPANS]: of every span, which has OF words, COUNT words from PLACE on"""
    word = tl.arange(0, COUNT * SPANS)
    span = FIRST + word // COUNT
    at = plane.to(tl.pointer_type(tl.int32)) + row[:, None] * (WIDTH // 64 * OF)
    at += (span * OF + PLACE + word % COUNT)[None, :]
    return tl.load(at, exists[:, None] & (span < WIDTH // 64)[None, :], other=0, eviction_policy="evict_first")


@triton.jit
def _in_blocks(plane, row, exists, FIRST, WIDTH, SPANS, BLOCK, STRIDE, PLACE, COUNT):
    """[ROWS, blocks, COUNT]: of a plane with STRIDE numbers for each block those at PLACE and so on"""
    block = FIRST * 64 // BLOCK + tl.arange(0, SPANS * 64 // BLOCK)
    at = plane + (row[:, None, None] * (WIDTH // BLOCK) + block[None, :, None]) * STRIDE + PLACE
    inside = exists[:, None, None] & (block < WIDTH // BLOCK)[None, :, None]
    return tl.load(at + tl.arange(0, COUNT)[None, None, :], inside, other=0)


@triton.jit
def _factor(plane, row, exists, FIRST, WIDTH, SPANS):
    """[ROWS, blocks of 256] float32"""
    block = FIRST // 4 + tl.arange(0, SPANS // 4)
    at = plane + row[:, None] * (WIDTH // 256) + block[None, :]
    return tl.load(at, exists[:, None] & (block < WIDTH // 256)[None, :], other=0.0).to(tl.float32)


@triton.jit
def load_four(a, b, row, exists, FIRST, WIDTH, SPANS):
    return (
        _words(a, row, exists, FIRST, WIDTH, SPANS, 4, 0, 8),
        _words(a, row, exists, FIRST, WIDTH, SPANS, 4, 4, 8),
    )


@triton.jit
def load_four_one(a, b, row, exists, FIRST, WIDTH, SPANS):
    one, two = load_four(a, b, row, exists, FIRST, WIDTH, SPANS)
    return one, two, _words(b, row, exists, FIRST, WIDTH, SPANS, 2, 0, 2)


@triton.jit
def load_two(a, b, row, exists, FIRST, WIDTH, SPANS):
    return (
        _words(a, row, exists, FIRST, WIDTH, SPANS, 2, 0, 4),
        _words(a, row, exists, FIRST, WIDTH, SPANS, 2, 2, 4),
    )


@triton.jit
def load_two_one(a, b, row, exists, FIRST, WIDTH, SPANS):
    one, two = load_two(a, b, row, exists, FIRST, WIDTH, SPANS)
    return one, two, _words(b, row, exists, FIRST, WIDTH, SPANS, 2, 0, 2)


@triton.jit
def load_four_two(a, b, row, exists, FIRST, WIDTH, SPANS):
    one, two = load_four(a, b, row, exists, FIRST, WIDTH, SPANS)
    three, four = load_two(b, b, row, exists, FIRST, WIDTH, SPANS)
    return one, two, three, four


@triton.jit
def load_bytes(a, b, row, exists, FIRST, WIDTH, SPANS):
    return (
        _words(a, row, exists, FIRST, WIDTH, SPANS, 4, 0, 16), _words(a, row, exists, FIRST, WIDTH, SPANS, 4, 4, 16),
        _words(a, row, exists, FIRST, WIDTH, SPANS, 4, 8, 16), _words(a, row, exists, FIRST, WIDTH, SPANS, 4, 12, 16),
    )  # fmt: skip


@triton.jit
def _moved(words, FROM, TO):
    """With the bit at FROM at TO, of every byte; others are anything."""
    if FROM > TO:
        moved = words >> (FROM - TO)
    else:
        moved = words << (TO - FROM)
    return moved


@triton.jit
def values_four(held, HALF, GROUP, QUICK):
    words = regrouped(held[HALF], QUICK)[GROUP]
    return words & 0x0F0F0F0F, words >> 4 & 0x0F0F0F0F


@triton.jit
def values_five(held, HALF, GROUP, QUICK):
    first, last = values_four(held, HALF, GROUP, QUICK)
    PLACE: tl.constexpr = 4 * HALF + 2 * GROUP
    bits = held[2]
    return first | _moved(bits, PLACE, 4) & 0x10101010, last | _moved(bits, PLACE + 1, 4) & 0x10101010


@triton.jit
def values_six(held, HALF, GROUP, QUICK):
    first, last = values_four(held, HALF, GROUP, QUICK)
    bits = held[2 + HALF]
    return first | _moved(bits, 4 * GROUP, 4) & 0x30303030, last | _moved(bits, 4 * GROUP + 2, 4) & 0x30303030


@triton.jit
def values_two(held, HALF, GROUP, QUICK):
    bits = held[HALF]
    return _moved(bits, 4 * GROUP, 0) & 0x03030303, _moved(bits, 4 * GROUP + 2, 0) & 0x03030303


@triton.jit
def values_three(held, HALF, GROUP, QUICK):
    first, last = values_two(held, HALF, GROUP, QUICK)
    PLACE: tl.constexpr = 4 * HALF + 2 * GROUP
    bits = held[2]
    return first | _moved(bits, PLACE, 2) & 0x04040404, last | _moved(bits, PLACE + 1, 2) & 0x04040404


@triton.jit
def values_eight(held, HALF, GROUP, QUICK):
    words = held[2 * HALF + GROUP]
    return tl.split(tl.reshape(words, [words.shape[0], words.shape[1] // 2, 2]))


@triton.jit
def _looked_up(words, FIRST, LAST):
    """Of the low half of each byte the byte it stands for, in plain steps."""
    found = words * 0
    for place in tl.static_range(0, 32, 8):
        code = words >> place & 15
        byte = tl.where(code < 8, FIRST, LAST) >> ((code & 7) * 8).to(tl.int64)
        found |= (byte & 255).to(tl.int32) << place
    return found


@triton.jit
def _of_table(held, HALF, GROUP, ASM, FIRST, LAST, QUICK):
    words = regrouped(held[HALF], QUICK)[GROUP]
    if QUICK:
        return tl.inline_asm_elementwise(
            ASM, "=r,=r,r", [words], dtype=(tl.int32, tl.int32), is_pure=True, pack=1
        )  # fmt: skip
    return _looked_up(words, FIRST, LAST), _looked_up(words >> 4, FIRST, LAST)


@triton.jit
def values_iq4(held, HALF, GROUP, QUICK):
    return _of_table(held, HALF, GROUP, _IQ4, _IQ4_FIRST, _IQ4_LAST, QUICK)


@triton.jit
def values_fp4(held, HALF, GROUP, QUICK):
    """Twice what the codes stand for."""
    return _of_table(held, HALF, GROUP, _FP4, _FP4_FIRST, _FP4_LAST, QUICK)


@triton.jit
def _e8m0_half(exponent):
    """Half of what a code of E8M0 stands for."""
    small = tl.full(exponent.shape, 0x00200000, tl.int32) << tl.minimum(exponent, 1)
    return tl.where(exponent < 2, small, (exponent - 1) << 23).to(tl.float32, bitcast=True)


@triton.jit
def _e4m3_half(byte):
    """Half of what a code of unsigned E4M3 stands for."""
    exponent, rest = (byte >> 3) & 15, byte & 7
    normal = (((exponent + 120) << 23) | (rest << 20)).to(tl.float32, bitcast=True)
    found = tl.where(exponent == 0, rest.to(tl.float32) * 0.001953125, normal) * 0.5
    return tl.where((byte == 0) | (byte == 127), 0.0, found)


@triton.jit
def _of_groups(plane, row, exists, FIRST, WIDTH, SPANS, BLOCK, GROUP):
    """[ROWS, blocks, groups]: of a plane with one for each group"""
    return _in_blocks(plane, row, exists, FIRST, WIDTH, SPANS, BLOCK, BLOCK // GROUP, 0, BLOCK // GROUP)


@triton.jit
def _ones(codes):
    """The factor of types that have none."""
    return tl.full([codes.shape[0], codes.shape[1]], 1.0, tl.float32)


@triton.jit
def scales_k(c, d, row, exists, FIRST, WIDTH, SPANS, BLOCK, GROUP):
    """Of a block eight codes of scales, then eight of what is subtracted; and two factors, one of each."""
    codes = _in_blocks(c, row, exists, FIRST, WIDTH, SPANS, BLOCK, 16, 0, 8)
    least = _in_blocks(c, row, exists, FIRST, WIDTH, SPANS, BLOCK, 16, 8, 8)
    first, second = tl.split(_in_blocks(d, row, exists, FIRST, WIDTH, SPANS, BLOCK, 2, 0, 2).to(tl.float32))
    return codes.to(tl.float32), least.to(tl.float32), first, second


@triton.jit
def scales_q2_k(c, d, row, exists, FIRST, WIDTH, SPANS, BLOCK, GROUP):
    codes = _of_groups(c, row, exists, FIRST, WIDTH, SPANS, BLOCK, GROUP)
    first, second = tl.split(_in_blocks(d, row, exists, FIRST, WIDTH, SPANS, BLOCK, 2, 0, 2).to(tl.float32))
    return (codes & 15).to(tl.float32), (codes >> 4).to(tl.float32), first, second


@triton.jit
def scales_coded(c, d, row, exists, FIRST, WIDTH, SPANS, BLOCK, GROUP):
    """A code for each group, and a factor for each block of 256."""
    codes = _of_groups(c, row, exists, FIRST, WIDTH, SPANS, BLOCK, GROUP)
    return codes.to(tl.float32), 0.0, _factor(d, row, exists, FIRST, WIDTH, SPANS), 0.0


@triton.jit
def scales_plain(c, d, row, exists, FIRST, WIDTH, SPANS, BLOCK, GROUP):
    """A number for each group."""
    scales = _of_groups(c, row, exists, FIRST, WIDTH, SPANS, BLOCK, GROUP)
    return scales.to(tl.float32), 0.0, _ones(scales), 0.0


@triton.jit
def scales_least(c, d, row, exists, FIRST, WIDTH, SPANS, BLOCK, GROUP):
    """Two numbers for each group, of which the second is added."""
    scales = _of_groups(c, row, exists, FIRST, WIDTH, SPANS, BLOCK, GROUP)
    least = _of_groups(d, row, exists, FIRST, WIDTH, SPANS, BLOCK, GROUP)
    ones = _ones(scales)
    return scales.to(tl.float32), least.to(tl.float32), ones, -ones


@triton.jit
def scales_zeros(c, d, row, exists, FIRST, WIDTH, SPANS, BLOCK, GROUP):
    """A number for each group, and what stands for 0."""
    scales = _of_groups(c, row, exists, FIRST, WIDTH, SPANS, BLOCK, GROUP)
    zeros = _of_groups(d, row, exists, FIRST, WIDTH, SPANS, BLOCK, GROUP)
    return scales, zeros * scales, _ones(scales), _ones(scales)


@triton.jit
def scales_e8m0(c, d, row, exists, FIRST, WIDTH, SPANS, BLOCK, GROUP):
    codes = _of_groups(c, row, exists, FIRST, WIDTH, SPANS, BLOCK, GROUP)
    return _e8m0_half(codes.to(tl.int32)), 0.0, _ones(codes), 0.0


@triton.jit
def scales_e4m3(c, d, row, exists, FIRST, WIDTH, SPANS, BLOCK, GROUP):
    codes = _of_groups(c, row, exists, FIRST, WIDTH, SPANS, BLOCK, GROUP)
    return _e4m3_half(codes.to(tl.int32)), 0.0, _ones(codes), 0.0

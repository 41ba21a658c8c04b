"""Planes of words (`span_planes`) in registers. Of every type there are three functions:

load(a, b, row, exists, FIRST, WIDTH, SPANS)    what is read of spans [FIRST, FIRST + SPANS) of rows [ROWS], a tuple
bytes(held, HALF, GROUP, QUICK)                 of that, values of a half of each span that are in its group GROUP of 32:
                                                of the first 16 columns of the group, and of the last
scales(c, d, row, exists, FIRST, WIDTH, SPANS, BLOCK)
                                                codes of scales and of what is subtracted, [ROWS, blocks, groups], and a
                                                factor of each, [ROWS, blocks]; BLOCK: columns

A span is 64 columns, and a thread has one at a time. Words of values are [ROWS, 2 * SPANS], four bytes each: word 2s + i
of half h is for the places 8h + 4i .. 8h + 4i + 3 of 16 columns of span s.
"""

# ruff: noqa: N803 - capitals mark compile-time constants
from __future__ import annotations

import triton
import triton.language as tl

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
def _four_words(plane, row, exists, HALF: tl.constexpr, FIRST: tl.constexpr, WIDTH: tl.constexpr, SPANS: tl.constexpr):
    """[ROWS, 4 * SPANS]: of every eight the first four, or the last"""
    word = tl.arange(0, 4 * SPANS)
    place = (FIRST + word // 4) * 8 + HALF * 4 + word % 4
    at = plane.to(tl.pointer_type(tl.int32)) + row[:, None] * (WIDTH // 8) + place[None, :]
    return tl.load(at, exists[:, None] & (place < WIDTH // 8)[None, :], other=0, eviction_policy="evict_first")


@triton.jit
def _in_blocks(
    plane, row, exists, FIRST: tl.constexpr, WIDTH: tl.constexpr, SPANS: tl.constexpr, BLOCK: tl.constexpr,
    STRIDE: tl.constexpr, PLACE: tl.constexpr, COUNT: tl.constexpr,
):  # fmt: skip
    """[ROWS, blocks, COUNT]: of a plane with STRIDE numbers for each block those at PLACE and so on"""
    block = FIRST * 64 // BLOCK + tl.arange(0, SPANS * 64 // BLOCK)
    at = plane + (row[:, None, None] * (WIDTH // BLOCK) + block[None, :, None]) * STRIDE + PLACE
    inside = exists[:, None, None] & (block < WIDTH // BLOCK)[None, :, None]
    return tl.load(at + tl.arange(0, COUNT)[None, None, :], inside, other=0)


@triton.jit
def load_q4(a, b, row, exists, FIRST: tl.constexpr, WIDTH: tl.constexpr, SPANS: tl.constexpr):
    return (
        _four_words(a, row, exists, 0, FIRST, WIDTH, SPANS),
        _four_words(a, row, exists, 1, FIRST, WIDTH, SPANS),
    )


@triton.jit
def bytes_q4(held, HALF: tl.constexpr, GROUP: tl.constexpr, QUICK: tl.constexpr):
    words = regrouped(held[HALF], QUICK)[GROUP]
    return words & 0x0F0F0F0F, words >> 4 & 0x0F0F0F0F


@triton.jit
def scales_k(c, d, row, exists, FIRST: tl.constexpr, WIDTH: tl.constexpr, SPANS: tl.constexpr, BLOCK: tl.constexpr):
    """Of a block eight codes of scales, then eight of what is subtracted; and two factors, one of each."""
    codes = _in_blocks(c, row, exists, FIRST, WIDTH, SPANS, 256, 16, 0, 8)
    least = _in_blocks(c, row, exists, FIRST, WIDTH, SPANS, 256, 16, 8, 8)
    halves = _in_blocks(d, row, exists, FIRST, WIDTH, SPANS, 256, 2, 0, 2)
    first, second = tl.split(halves.to(tl.float32))
    return codes.to(tl.float32), least.to(tl.float32), first, second

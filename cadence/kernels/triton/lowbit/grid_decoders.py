"""The decoders of GGUF types whose values are entries of grids, as `block_decoders` has those of others."""

from __future__ import annotations

import triton
import triton.language as tl

from cadence.kernels.triton.lowbit.block_decoders import even_bits, grid_entry, half_of, negated, of_block


@triton.jit
def iq2_xxs(a, b, c, d, table, at, part, i):
    index = tl.load(a + at * 64 + (part * 8 + i // 8)).to(tl.int32)
    word = tl.load(b + at * 16 + part * 2 + 1)
    return negated(grid_entry(table, index, i % 8, 8), even_bits((word >> (i // 8 * 7)) & 127), i % 8)


@triton.jit
def iq2_xxs_scales(a, b, c, d, at, part):
    word = tl.load(b + at * 16 + part * 2 + 1)
    return of_block(c, at, 1, 0) * (0.5 + ((word >> 28) & 15).to(tl.float32)) * 0.25, 0.0


@triton.jit
def iq2_xs(a, b, c, d, table, at, part, i):
    word = tl.load(a + at * 32 + (part * 2 + i // 8)).to(tl.int32) & 0xFFFF
    return negated(grid_entry(table, word & 511, i % 8, 8), even_bits(word >> 9), i % 8)


@triton.jit
def iq2_xs_scales(a, b, c, d, at, part):
    each = half_of(tl.load(b + at * 8 + part // 2), part % 2)
    return of_block(c, at, 1, 0) * (0.5 + each.to(tl.float32)) * 0.25, 0.0


@triton.jit
def iq2_s(a, b, c, d, table, at, part, i):
    place = part * 2 + i // 8
    high = (tl.load(b + at * 16 + place // 4).to(tl.int32) >> (place % 4 * 2)) & 3
    index = tl.load(a + at * 64 + place).to(tl.int32) | (high << 8)
    signs = tl.load(a + at * 64 + 32 + place).to(tl.int32)
    return negated(grid_entry(table, index, i % 8, 8), signs, i % 8)


@triton.jit
def iq2_s_scales(a, b, c, d, at, part):
    each = half_of(tl.load(b + at * 16 + 8 + part // 2), part % 2)
    return of_block(c, at, 1, 0) * (0.5 + each.to(tl.float32)) * 0.25, 0.0


@triton.jit
def iq3_xxs(a, b, c, d, table, at, part, i):
    index = tl.load(a + at * 64 + (part * 8 + i // 4)).to(tl.int32)
    word = tl.load(b + at * 8 + part)
    return negated(grid_entry(table, index, i % 4, 4), even_bits((word >> (i // 8 * 7)) & 127), i % 8)


@triton.jit
def iq3_xxs_scales(a, b, c, d, at, part):
    word = tl.load(b + at * 8 + part)
    return of_block(c, at, 1, 0) * (0.5 + ((word >> 28) & 15).to(tl.float32)) * 0.5, 0.0


@triton.jit
def iq3_s(a, b, c, d, table, at, part, i):
    high = (tl.load(b + at * 44 + part).to(tl.int32) >> (i // 4)) & 1
    index = tl.load(a + at * 64 + (part * 8 + i // 4)).to(tl.int32) | (high << 8)
    signs = tl.load(b + at * 44 + (8 + part * 4 + i // 8)).to(tl.int32)
    return negated(grid_entry(table, index, i % 4, 4), signs, i % 8)


@triton.jit
def iq3_s_scales(a, b, c, d, at, part):
    each = half_of(tl.load(b + at * 44 + 40 + part // 2), part % 2)
    return of_block(c, at, 1, 0) * (1 + 2 * each).to(tl.float32), 0.0


@triton.jit
def iq1_s(a, b, c, d, table, at, part, i):
    word = tl.load(b + at * 8 + part).to(tl.int32) & 0xFFFF
    index = tl.load(a + at * 32 + (part * 4 + i // 8)).to(tl.int32) | (((word >> (i // 8 * 3)) & 7) << 8)
    return grid_entry(table, index, i % 8, 8) + tl.where(word >> 15 == 0, 0.125, -0.125)


@triton.jit
def iq1_s_scales(a, b, c, d, at, part):
    word = tl.load(b + at * 8 + part).to(tl.int32)
    return of_block(c, at, 1, 0) * (2 * ((word >> 12) & 7) + 1).to(tl.float32), 0.0


@triton.jit
def iq1_m(a, b, c, d, table, at, part, i):
    high = half_of(tl.load(b + at * 16 + part), i // 8)
    index = tl.load(a + at * 32 + (part * 2 + i // 8)).to(tl.int32) | ((high & 7) << 8)
    return grid_entry(table, index, i % 8, 8) + tl.where(high & 8 == 0, 0.125, -0.125)


@triton.jit
def iq1_m_scales(a, b, c, d, at, part):
    """The scale of a block lies in four pieces, above those of its groups."""
    scale = (tl.load(c + at * 4).to(tl.int32) >> 12) & 15
    scale |= ((tl.load(c + at * 4 + 1).to(tl.int32) >> 12) & 15) << 4
    scale |= ((tl.load(c + at * 4 + 2).to(tl.int32) >> 12) & 15) << 8
    scale |= ((tl.load(c + at * 4 + 3).to(tl.int32) >> 12) & 15) << 12
    each = (tl.load(c + at * 4 + part // 4).to(tl.int32) >> (part % 4 * 3)) & 7
    whole = scale.to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)
    return whole * (2 * each + 1).to(tl.float32), 0.0

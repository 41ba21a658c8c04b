"""Gumbel noise from Philox4x32-10, word for word what the reference describes."""

# ruff: noqa: N803 - capitals mark compile-time constants
from __future__ import annotations

import triton
import triton.language as tl

from cadence.kernels.triton.common.launch import quick


@triton.jit
def gumbel(word):
    """The noise a 32-bit word stands for, in float32."""
    uniform = (word.to(tl.float64) + 0.5) * 2.3283064365386963e-10  # 2**-32
    return (-tl.log(-tl.log(uniform))).to(tl.float32)


@triton.jit
def philox(quad, seed, position):
    """Four words for the ids 4 * quad .. 4 * quad + 3; quad uint32, any shape; seed and position int64 scalars."""
    zero = quad * 0
    c0 = quad
    c1 = zero + (position & 0xFFFFFFFF).to(tl.uint32)
    c2 = zero + ((position >> 32) & 0xFFFFFFFF).to(tl.uint32)
    c3 = zero
    k0 = zero + (seed & 0xFFFFFFFF).to(tl.uint32)
    k1 = zero + ((seed >> 32) & 0xFFFFFFFF).to(tl.uint32)
    m0 = zero + 0xD2511F53
    m1 = zero + 0xCD9E8D57
    for _ in tl.static_range(10):
        old0 = c0
        old2 = c2
        c0 = tl.umulhi(old2, m1) ^ c1 ^ k0
        c2 = tl.umulhi(old0, m0) ^ c3 ^ k1
        c1 = old2 * m1
        c3 = old0 * m0
        k0 = k0 + 0x9E3779B9
        k1 = k1 + 0xBB67AE85
    return c0, c1, c2, c3


@quick
@triton.jit
def gumbel_noise(
    out_ptr, seeds_ptr, positions_ptr, seed_stride, position_stride, VOCAB: tl.constexpr, QUADS: tl.constexpr
):
    """Program (s, b) writes ids [4 * QUADS * b, 4 * QUADS * (b + 1)) of line s of out [S, VOCAB]."""
    line = tl.program_id(0).to(tl.int64)
    seed = tl.load(seeds_ptr + line * seed_stride)
    position = tl.load(positions_ptr + line * position_stride)
    quad = tl.program_id(1) * QUADS + tl.arange(0, QUADS)
    w0, w1, w2, w3 = philox(quad.to(tl.uint32), seed, position)
    token = quad * 4
    out = out_ptr + line * VOCAB + token
    tl.store(out, gumbel(w0), mask=token < VOCAB)
    tl.store(out + 1, gumbel(w1), mask=token + 1 < VOCAB)
    tl.store(out + 2, gumbel(w2), mask=token + 2 < VOCAB)
    tl.store(out + 3, gumbel(w3), mask=token + 3 < VOCAB)

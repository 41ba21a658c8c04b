"""Keys and values on their way into a cache of eight bits: multiples of a scale for each token and kv head, or of one
that the checkpoint names. How they lie there is said in `attention_bytes`."""

# ruff: noqa: N803 - capitals mark compile-time constants
from __future__ import annotations

import triton
import triton.language as tl

from cadence.kernels.triton.common.private import is_interpreted

_INTERPRETED = tl.constexpr(is_interpreted())
_LEAST_ABSMAX = tl.constexpr(1e-30)  # a row below that is all zeros: its inverse scale would leave float32


@triton.jit
def most_entry(CACHE: tl.constexpr):
    """The largest entry of a cache of the type CACHE."""
    if tl.int8 == CACHE:
        return 127.0
    else:
        return 448.0 if tl.float8e4nv == CACHE else 57344.0


@triton.jit
def sizes(x):
    """|x| as bits, whose order is that of the numbers, NaN above all: `tl.max` would pass over it."""
    return x.to(tl.float32).to(tl.int32, bitcast=True) & 0x7FFFFFFF


@triton.jit
def scales_of(top, fixed, MOST, CACHE: tl.constexpr):
    """top: the largest of `sizes` of each row; fixed: the scale of all rows of float8, 0 = none -> (scales, inverses).
    A row with a number that is none has it as its scale, and zeros as entries."""
    absmax = top.to(tl.float32, bitcast=True)
    usable = (absmax >= _LEAST_ABSMAX) & (absmax < float("inf"))
    most, given = tl.zeros_like(absmax) + MOST, tl.zeros_like(absmax) + fixed
    own = tl.div_rn(absmax, most)
    inverse = tl.div_rn(most, tl.where(usable, absmax, 1.0))
    if tl.int8 != CACHE and fixed > 0.0:
        own = tl.where(absmax < float("inf"), given, absmax)
        inverse = tl.div_rn(tl.zeros_like(absmax) + 1.0, given)
    inverse = tl.where(usable, inverse, 0.0)
    return own, inverse


@triton.jit
def entries_of(x, inverse, MOST, CACHE: tl.constexpr):
    """x -> entries of the type CACHE, ties to even; those beyond it are its largest."""
    y = tl.where(inverse > 0.0, x.to(tl.float32) * inverse, 0.0)
    y = tl.minimum(tl.maximum(y, -MOST), MOST)
    if tl.int8 == CACHE:
        if _INTERPRETED:
            return (y + 12582912.0 - 12582912.0).to(tl.int8)
        whole = tl.inline_asm_elementwise("cvt.rni.s32.f32 $0, $1;", "=r,f", [y], tl.int32, is_pure=True, pack=1)
        return whole.to(tl.int8)
    if _INTERPRETED:
        y = _nearest(y, CACHE)
    return y.to(CACHE)


@triton.jit
def _nearest(y, CACHE: tl.constexpr):
    """y, rounded to a number that CACHE has: the interpreter's own conversion is right for those alone."""
    DROPPED: tl.constexpr = 20 if tl.float8e4nv == CACHE else 21
    bits = sizes(y)
    sign = y.to(tl.int32, bitcast=True) ^ bits
    large = (bits + ((1 << (DROPPED - 1)) - 1) + ((bits >> DROPPED) & 1)) & -(1 << DROPPED)
    LEAST: tl.constexpr = 2.0**-6 if tl.float8e4nv == CACHE else 2.0**-14  # normal number
    STEP: tl.constexpr = 24576.0 if tl.float8e4nv == CACHE else 192.0  # has LEAST / 8, or / 4, as its last bit
    small = ((tl.abs(y) + STEP) - STEP).to(tl.int32, bitcast=True)
    return (tl.where(tl.abs(y) < LEAST, small, large) | sign).to(tl.float32, bitcast=True)

"""A tile of keys of a cache of eight bits: fetched by the block table, folded into a running softmax.

A block of such a cache has, for each kv head, the entries of its tokens, then a float32 scale for each token. Those of
keys lie token by token; those of values dim by dim, each with all its tokens: both products then read their tiles along
the dimension that they sum over. Entries become float16 in registers, which is exact; scales never meet them: those of
keys multiply scores, those of values are a part of the softmax's exponents. Entries are numbers in all of a pool: it
begins as zeros, and what is no number goes into a scale (`byte_rows`).
"""

# ruff: noqa: N803 - capitals mark compile-time constants
from __future__ import annotations

import triton
import triton.language as tl

from cadence.kernels.triton.attention.attention_tile import first_seen, is_seen, load_bias
from cadence.kernels.triton.common.private import is_interpreted

_LEAST_SCALE = tl.constexpr((127 - 64) << 23)  # 2^-64 as bits: smaller ones do not lower exponents further
_INTERPRETED = tl.constexpr(is_interpreted())
_FOUR_BYTES = tl.constexpr("""{
    .reg .b32 bytes, high, offset;
    xor.b32 bytes, $2, 0x80808080;
    mov.b32 high, 0x64646464;
    mov.b32 offset, 0x64806480;
    prmt.b32 $0, bytes, high, 0x4140;
    prmt.b32 $1, bytes, high, 0x4342;
    sub.rn.f16x2 $0, $0, offset;
    sub.rn.f16x2 $1, $1, offset;
}""")


@triton.jit
def whole(entries, KIND: tl.constexpr):
    """Entries of a cache as numbers of KIND: float16, or wider. Exact."""
    if entries.dtype == tl.int8:  # in the low bits of 1024.0, offset by 128: to convert bytes takes four times as long
        if _INTERPRETED:
            bits = (entries.to(tl.uint8, bitcast=True) ^ 128).to(tl.uint16) | 0x6400
            return (bits.to(tl.float16, bitcast=True) - 1152.0).to(KIND)
        return tl.inline_asm_elementwise(_FOUR_BYTES, "=r,=r,r", [entries], tl.float16, is_pure=True, pack=4).to(KIND)
    return entries.to(KIND)


@triton.jit
def even_queries(q, KIND: tl.constexpr):
    """q [rows, DIM_PAD] -> (its rows times powers of two in KIND, the inverses of those [rows]): the largest entry of
    each row is near one then, so that float16 holds it whatever type q is of."""
    wide = q.to(tl.float32)
    most = tl.max(tl.abs(wide), 1)
    exponent = tl.minimum(tl.maximum((most.to(tl.int32, bitcast=True) >> 23) & 255, 1), 253)
    inverse = (exponent << 23).to(tl.float32, bitcast=True)
    factor = ((254 - exponent) << 23).to(tl.float32, bitcast=True)
    return (wide * factor[:, None]).to(KIND), inverse


@triton.jit
def _pages(table, tile, key_end, BLOCK_SIZE: tl.constexpr, KEYS: tl.constexpr):
    """Those of a tile's keys [KEYS]."""
    lead = tl.arange(0, KEYS)
    at = tile // BLOCK_SIZE + lead // BLOCK_SIZE
    if KEYS < BLOCK_SIZE:
        at = (tile + lead) // BLOCK_SIZE
    page = tl.load(table + at, mask=tile + lead < key_end, other=0)
    return tl.max_constancy(page, [min(KEYS, BLOCK_SIZE)])


@triton.jit
def _load_tile(
    k_ptr, v_ptr, page, tile, kv_head, k_block, v_block,
    DIM: tl.constexpr, DIM_PAD: tl.constexpr, BLOCK_SIZE: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """-> k [KEYS, DIM_PAD], v [DIM_PAD, KEYS], and their scales [KEYS]. What is beyond the keys is read as it is: with
    masks, loads of values would be byte by byte."""
    HEAD: tl.constexpr = BLOCK_SIZE * (DIM + 4)  # bytes of a block and kv head
    lead = tl.arange(0, KEYS)
    dim = tl.arange(0, DIM_PAD)
    slot = lead % BLOCK_SIZE
    if KEYS < BLOCK_SIZE:
        slot = (tile + lead) % BLOCK_SIZE
    k_head = k_ptr + (page.to(tl.int64) * k_block + kv_head * HEAD)
    v_head = v_ptr + (page.to(tl.int64) * v_block + kv_head * HEAD)
    k_at = k_head[:, None] + (slot[:, None] * DIM + dim[None, :])
    v_at = v_head[None, :] + (dim[:, None] * BLOCK_SIZE + slot[None, :])
    if DIM < DIM_PAD:
        k = tl.load(k_at, mask=dim[None, :] < DIM, other=0.0)
        v = tl.load(v_at, mask=dim[:, None] < DIM, other=0.0)
    else:
        k = tl.load(k_at)
        v = tl.load(v_at)
    k_scale = tl.load((k_head + (BLOCK_SIZE * DIM + 4 * slot)).to(tl.pointer_type(tl.float32)))
    v_scale = tl.load((v_head + (BLOCK_SIZE * DIM + 4 * slot)).to(tl.pointer_type(tl.float32)))
    return k, v, k_scale, v_scale


@triton.jit
def _is_stored(key, pos, key_end, WINDOW: tl.constexpr, CHUNK: tl.constexpr):
    """Beyond key_end and before what all rows see lies whatever the pool held before."""
    stored = key < key_end
    if WINDOW > 0 or CHUNK > 0:
        stored = stored & (key >= first_seen(tl.min(pos, 0), WINDOW, CHUNK))
    return stored


@triton.jit
def _units(inverse, scale, softcap, SOFTCAP: tl.constexpr):
    """-> (what products of entries are to be multiplied by, per row; with SOFTCAP, what its result is, after that).
    Weights are powers of two."""
    if SOFTCAP:
        return inverse * (2.0 * scale / softcap), softcap * 1.4426950408889634
    else:
        return inverse * (scale * 1.4426950408889634), 1.0


@triton.jit
def _split_scale(v_scale):
    """v_scale = 2^exponent * fraction -> (exponent, 2^-exponent, fraction). Exponents are added to those of weights:
    those of entries then are at most one, and those of values more by 2^-exponent."""
    bits = tl.maximum(v_scale.to(tl.int32, bitcast=True), _LEAST_SCALE)
    exponent = ((bits >> 23) - 127).to(tl.float32)
    power = tl.exp2(-exponent)
    return exponent, power, v_scale * power


@triton.jit
def _by_key(values, TURNED):
    """[KEYS] beside scores [KEYS, rows], or [rows, KEYS]"""
    return values[:, None] if TURNED else values[None, :]


@triton.jit
def _by_row(values, TURNED):
    """[rows], the same"""
    return values[None, :] if TURNED else values[:, None]


@triton.jit
def fold_bytes(
    acc, total, top, q, inverse, pos, key_begin, key_end,
    k_ptr, v_ptr, table, kv_head, k_block, v_block, scale, softcap, bias_line,
    DIM: tl.constexpr, DIM_PAD: tl.constexpr, BLOCK_SIZE: tl.constexpr, KEYS: tl.constexpr,
    WINDOW: tl.constexpr, CHUNK: tl.constexpr, BOTH: tl.constexpr, SOFTCAP: tl.constexpr, REACH: tl.constexpr,
    MASKED: tl.constexpr, PRECISION: tl.constexpr, TURNED: tl.constexpr,
):  # fmt: skip
    """As `fold_keys`: acc, q [rows, DIM_PAD]; q, inverse by `even_queries`. TURNED, for few rows: keys on the left, acc
    and q [DIM_PAD, rows]."""
    AXIS: tl.constexpr = 0 if TURNED else 1  # of keys, in scores
    lead = tl.arange(0, KEYS)
    row_unit, unit = _units(inverse, scale, softcap, SOFTCAP)
    page = _pages(table, key_begin, key_end, BLOCK_SIZE, KEYS)
    for tile in range(key_begin, key_end, KEYS):
        k, v, k_scale, v_scale = _load_tile(
            k_ptr, v_ptr, page, tile, kv_head, k_block, v_block, DIM, DIM_PAD, BLOCK_SIZE, KEYS
        )
        page = _pages(table, tile + KEYS, key_end, BLOCK_SIZE, KEYS)
        key = tile + lead
        values = whole(v, q.dtype)
        if MASKED:
            v_scale = tl.where(_is_stored(key, pos, key_end, WINDOW, CHUNK), v_scale, 0.0)
        exponent, power, fraction = _split_scale(v_scale)
        if TURNED:
            score = tl.dot(whole(k, q.dtype), q, input_precision=PRECISION)
        else:
            score = tl.dot(q, whole(k, q.dtype).T, input_precision=PRECISION)
        score = score * _by_row(row_unit, TURNED) * _by_key(k_scale, TURNED)
        if SOFTCAP:
            score = (2.0 * tl.sigmoid(score) - 1.0) * unit  # tanh
        if REACH > 0:
            bias = load_bias(_by_row(bias_line, TURNED), _by_key(key, TURNED), _by_row(pos, TURNED), REACH)
            score += bias * 1.4426950408889634
        score += _by_key(exponent, TURNED)
        if MASKED:
            seen = is_seen(_by_key(key, TURNED), _by_row(pos, TURNED), key_end, WINDOW, CHUNK, BOTH)
            score = tl.where(seen, score, float("-inf"))
        new_top = tl.maximum(top, tl.max(score, AXIS))
        shrink = tl.exp2(top - new_top)
        weight = tl.exp2(score - _by_row(new_top, TURNED))
        total = total * shrink + tl.sum(weight * _by_key(power, TURNED), AXIS)
        weight = (weight * _by_key(fraction, TURNED)).to(q.dtype)
        acc *= _by_row(shrink, TURNED)
        if TURNED:
            acc = tl.dot(values, weight, acc, input_precision=PRECISION)
        else:
            acc = tl.dot(weight, values.T, acc, input_precision=PRECISION)
        top = new_top
    return acc, total, top

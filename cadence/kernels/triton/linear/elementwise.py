"""Norms, gated activations, rotary embedding, and storing keys and values."""

# ruff: noqa: N803 - capitals mark compile-time constants
from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from cadence.kernels.triton.attention.byte_rows import entries_of, most_entry, scales_of, sizes
from cadence.kernels.triton.common.launch import quick


@quick
@triton.jit(do_not_specialize=["rows"])
def rms_norm(
    out_ptr, x_ptr, weight_ptr, rows, inner, outer_stride, inner_stride, eps,
    WIDTH: tl.constexpr, WIDTH_PAD: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Row r of x lies at (r // inner) * outer_stride + (r % inner) * inner_stride; out is contiguous."""
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    column = tl.arange(0, WIDTH_PAD)
    inside = (row < rows)[:, None] & (column < WIDTH)[None, :]
    at = (row // inner) * outer_stride + (row % inner) * inner_stride
    x = tl.load(x_ptr + at[:, None] + column[None, :], mask=inside, other=0.0).to(tl.float32)
    scale = 1.0 / tl.sqrt(tl.sum(x * x, 1) / WIDTH + eps)
    weight = tl.load(weight_ptr + column, mask=column < WIDTH, other=0.0).to(tl.float32)
    result = x * scale[:, None] * weight[None, :]
    tl.store(out_ptr + row[:, None] * WIDTH + column[None, :], result.to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit
def added_norm(
    total_ptr, x_ptr, residual_ptr, weight_ptr, row, column, eps, term_size,
    WIDTH: tl.constexpr, TERMS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """A row [WIDTH_PAD] float32; all tensors contiguous, x as terms to be added up, term_size from one to the next."""
    inside = column < WIDTH
    weight = tl.load(weight_ptr + column, mask=inside, other=0.0).to(tl.float32)
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    at = row * WIDTH + column
    residual = tl.load(residual_ptr + at, mask=inside, other=0.0).to(tl.float32)
    x = tl.load(x_ptr + at, mask=inside, other=0.0).to(tl.float32)
    for term in tl.static_range(1, TERMS):
        x += tl.load(x_ptr + term * term_size + at, mask=inside, other=0.0).to(tl.float32)
    rounded = (x + residual).to(total_ptr.dtype.element_ty)  # the norm is taken of the sum as it is stored
    tl.store(total_ptr + at, rounded, mask=inside)
    total = rounded.to(tl.float32)
    return total * (1.0 / tl.sqrt(tl.sum(total * total, 0) / WIDTH + eps)) * weight


@quick
@triton.jit
def add_rms_norm(
    out_ptr, total_ptr, x_ptr, residual_ptr, weight_ptr, eps, term_size,
    WIDTH: tl.constexpr, WIDTH_PAD: tl.constexpr, TERMS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """`added_norm`, a row per program."""
    row, column = tl.program_id(0).to(tl.int64), tl.arange(0, WIDTH_PAD)
    normed = added_norm(total_ptr, x_ptr, residual_ptr, weight_ptr, row, column, eps, term_size, WIDTH, TERMS, PDL)
    tl.store(out_ptr + (row * WIDTH + column), normed.to(out_ptr.dtype.element_ty), mask=column < WIDTH)


@triton.jit
def activate(x, GELU: tl.constexpr):
    """silu(x), or gelu_tanh(x); x in float32."""
    if GELU:  # 0.5 * (1 + tanh(z)) = sigmoid(2 z)
        return x * tl.sigmoid(1.5957691216057308 * (x + 0.044715 * x * x * x))
    return x * tl.sigmoid(x)


@quick
@triton.jit
def gate_mul(out_ptr, x_ptr, x_stride, WIDTH: tl.constexpr, BLOCK: tl.constexpr, GELU: tl.constexpr, PDL: tl.constexpr):
    """x [T, 2 * WIDTH] = (gate, up) -> out [T, WIDTH]."""
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < WIDTH
    x = tl.load(x_ptr + row * x_stride + column, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(x_ptr + row * x_stride + WIDTH + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(out_ptr + row * WIDTH + column, (activate(x, GELU) * up).to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit
def _rotate(x_ptr, cos, sin, head_stride, heads, HEADS_PAD: tl.constexpr, HALF: tl.constexpr, HALF_PAD: tl.constexpr):
    head = tl.arange(0, HEADS_PAD)
    column = tl.arange(0, HALF_PAD)
    inside = (head < heads)[:, None] & (column < HALF)[None, :]
    at = x_ptr + head[:, None] * head_stride + column[None, :]
    first = tl.load(at, mask=inside, other=0.0).to(tl.float32)
    second = tl.load(at + HALF, mask=inside, other=0.0).to(tl.float32)
    tl.store(at, (first * cos - second * sin).to(x_ptr.dtype.element_ty), mask=inside)
    tl.store(at + HALF, (second * cos + first * sin).to(x_ptr.dtype.element_ty), mask=inside)


@quick
@triton.jit
def rope(
    q_ptr, k_ptr, positions_ptr, cos_sin_ptr, q_token, q_head, k_token, k_head,
    Q_HEADS: tl.constexpr, K_HEADS: tl.constexpr, Q_PAD: tl.constexpr, K_PAD: tl.constexpr,
    HALF: tl.constexpr, HALF_PAD: tl.constexpr,
):  # fmt: skip
    """Program (t, 0) turns the query heads of token t, program (t, 1) its key heads."""
    token = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, HALF_PAD)
    angle = cos_sin_ptr + tl.load(positions_ptr + token) * (2 * HALF) + column
    cos = tl.load(angle, mask=column < HALF, other=0.0)[None, :]
    sin = tl.load(angle + HALF, mask=column < HALF, other=0.0)[None, :]
    if tl.program_id(1) == 0:
        _rotate(q_ptr + token * q_token, cos, sin, q_head, Q_HEADS, Q_PAD, HALF, HALF_PAD)
    else:
        _rotate(k_ptr + token * k_token, cos, sin, k_head, K_HEADS, K_PAD, HALF, HALF_PAD)


@quick
@triton.jit
def write_kv(
    k_ptr, v_ptr, k_cache_ptr, v_cache_ptr, slots_ptr, k_token, k_head, v_token, v_head, k_block, v_block,
    k_fixed, v_fixed,
    HEADS: tl.constexpr, HEADS_PAD: tl.constexpr, DIM: tl.constexpr, DIM_PAD: tl.constexpr, BLOCK_SIZE: tl.constexpr,
):  # fmt: skip
    """One token per program: k, v [T, HEADS, DIM] -> caches [num_blocks, HEADS, BLOCK_SIZE, DIM], or of eight bits."""
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots_ptr + token)
    block, offset = slot // BLOCK_SIZE, slot % BLOCK_SIZE
    head = tl.arange(0, HEADS_PAD)[:, None]
    dim = tl.arange(0, DIM_PAD)[None, :]
    inside = (head < HEADS) & (dim < DIM)
    k = tl.load(k_ptr + token * k_token + head * k_head + dim, mask=inside, other=0.0)
    v = tl.load(v_ptr + token * v_token + head * v_head + dim, mask=inside, other=0.0)
    k_at, v_at = k_cache_ptr + block * k_block, v_cache_ptr + block * v_block
    CACHE: tl.constexpr = k_cache_ptr.dtype.element_ty
    if CACHE.primitive_bitwidth == 8:
        most = most_entry(CACHE)
        at = head * (BLOCK_SIZE * (DIM + 4))
        scale_at = at + BLOCK_SIZE * DIM + 4 * offset
        k_scale, k_inverse = scales_of(tl.max(sizes(k), 1)[:, None], k_fixed, most, CACHE)
        v_scale, v_inverse = scales_of(tl.max(sizes(v), 1)[:, None], v_fixed, most, CACHE)
        tl.store(k_at + at + offset * DIM + dim, entries_of(k, k_inverse, most, CACHE), mask=inside)
        tl.store(v_at + at + dim * BLOCK_SIZE + offset, entries_of(v, v_inverse, most, CACHE), mask=inside)
        tl.store((k_at + scale_at).to(tl.pointer_type(tl.float32)), k_scale, mask=head < HEADS)
        tl.store((v_at + scale_at).to(tl.pointer_type(tl.float32)), v_scale, mask=head < HEADS)
    else:
        place = (head * BLOCK_SIZE + offset) * DIM + dim
        tl.store(k_at + place, k.to(CACHE), mask=inside)
        tl.store(v_at + place, v.to(CACHE), mask=inside)

"""What both attention kernels do with a tile of keys: fetch it by the block table, fold it into a running softmax; and
what queries see of it, and add to its scores, whatever the cache."""

# ruff: noqa: N803 - capitals mark compile-time constants
from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def first_seen(pos, WINDOW: tl.constexpr, CHUNK: tl.constexpr):
    """Positions of queries, with a window or a chunk -> those of the first keys that they see: never before those of
    queries before them. Below 0: all are seen from the beginning on."""
    if CHUNK > 0:
        return pos // CHUNK * CHUNK
    else:
        return pos - WINDOW + 1


@triton.jit
def is_seen(key, pos, key_end, WINDOW: tl.constexpr, CHUNK: tl.constexpr, BOTH: tl.constexpr):
    """Whether queries at `pos` see keys below key_end: those up to their own or, with BOTH, all; within the window or
    the chunk."""
    seen = key < key_end
    if not BOTH:
        seen = seen & (key <= pos)
    if WINDOW > 0 or CHUNK > 0:
        seen = seen & (key >= first_seen(pos, WINDOW, CHUNK))
        if BOTH:
            seen = seen & (key < pos + WINDOW)
    return seen


@triton.jit
def bias_lines(bias_ptr, head, HEADS: tl.constexpr, REACH: tl.constexpr):
    """Where heads have what they add at distance 0, in a table [HEADS, 2 * REACH - 1]; heads that are none, as the last
    has. Without REACH there is no table: anything, of the shape of `head`."""
    if REACH > 0:
        return bias_ptr + tl.minimum(head, HEADS - 1) * (2 * REACH - 1) + (REACH - 1)
    else:
        return head


@triton.jit
def load_bias(line, key, pos, REACH: tl.constexpr):
    """line: by `bias_lines`; all three of shapes that go together -> what is added to scaled scores."""
    return tl.load(line + tl.minimum(tl.maximum(key - pos, 1 - REACH), REACH - 1))


@triton.jit
def fold_keys(
    acc, total, top, q, pos, key_begin, key_end,
    k_ptr, v_ptr, table, kv_head, k_block, v_block, scale, softcap, bias_line,
    DIM: tl.constexpr, DIM_PAD: tl.constexpr, BLOCK_SIZE: tl.constexpr, KEYS: tl.constexpr, RUN: tl.constexpr,
    WINDOW: tl.constexpr, CHUNK: tl.constexpr, BOTH: tl.constexpr, SOFTCAP: tl.constexpr, REACH: tl.constexpr,
    MASKED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Takes keys [key_begin, key_end) into (acc, total, top): sums [rows, DIM_PAD], sums of weights and maxima [rows].

    Row i of q stands at position pos[i]; bias_line by `bias_lines`. key_begin is a multiple of KEYS; KEYS and
    BLOCK_SIZE are powers of two.
    Without MASKED, every row sees every key and the keys are whole tiles; the arithmetic on a tile is the same either
    way, so a result does not depend on which tiles went without masks.

    RUN keys share one address. Matrix units that read shared memory (64 rows and more) take a tile as runs of pages;
    for the others such a tile would pass through registers twice, and RUN is 1.
    Page ids are read one tile ahead: the loads of keys and values never wait for them.
    """
    unit = scale * 1.4426950408889634  # weights are powers of two
    if SOFTCAP:
        unit = softcap * 1.4426950408889634
    if REACH > 0:
        unit = 1.4426950408889634
    lead = tl.arange(0, KEYS // RUN) * RUN  # where in the tile each run starts
    step = tl.arange(0, RUN)
    dim = tl.arange(0, DIM_PAD)
    page = tl.load(table + (key_begin + lead) // BLOCK_SIZE, mask=key_begin + lead < key_end, other=0)
    for tile in range(key_begin, key_end, KEYS):
        slot = lead % BLOCK_SIZE
        if KEYS < BLOCK_SIZE:
            slot = (tile + lead) % BLOCK_SIZE
        inside = (kv_head * BLOCK_SIZE + slot) * DIM
        k_run = page.to(tl.int64) * k_block + inside
        v_run = page.to(tl.int64) * v_block + inside
        page_at = (tile + KEYS) // BLOCK_SIZE + lead // BLOCK_SIZE
        if KEYS < BLOCK_SIZE:
            page_at = (tile + KEYS + lead) // BLOCK_SIZE
        page = tl.load(table + page_at, mask=tile + KEYS + lead < key_end, other=0)
        if RUN > 1:
            at = step[None, :, None] * DIM + dim[None, None, :]
            k_at = k_ptr + k_run[:, None, None] + at
            v_at = v_ptr + v_run[:, None, None] + at
            stored = (tile + lead[:, None, None] + step[None, :, None] < key_end) & (dim[None, None, :] < DIM)
            inner = dim[None, None, :] < DIM
        else:
            k_at = k_ptr + k_run[:, None] + dim[None, :]
            v_at = v_ptr + v_run[:, None] + dim[None, :]
            stored = (tile + lead[:, None] < key_end) & (dim[None, :] < DIM)
            inner = dim[None, :] < DIM
        if MASKED:  # beyond key_end lies whatever the pool held before
            k = tl.load(k_at, mask=stored, other=0.0)
            v = tl.load(v_at, mask=stored, other=0.0)
        elif DIM < DIM_PAD:
            k = tl.load(k_at, mask=inner, other=0.0)
            v = tl.load(v_at, mask=inner, other=0.0)
        else:
            k = tl.load(k_at)
            v = tl.load(v_at)
        if RUN > 1:
            k = k.reshape(KEYS, DIM_PAD)
            v = v.reshape(KEYS, DIM_PAD)
        score = tl.dot(q, k.T, input_precision=PRECISION)
        if SOFTCAP:
            score = 2.0 * tl.sigmoid(score * (2.0 * scale / softcap)) - 1.0  # tanh
        key = (tile + tl.arange(0, KEYS))[None, :]
        if REACH > 0:
            score = score * scale + load_bias(bias_line[:, None], key, pos[:, None], REACH)
        if MASKED:
            score = tl.where(is_seen(key, pos[:, None], key_end, WINDOW, CHUNK, BOTH), score, float("-inf"))
        new_top = tl.maximum(top, tl.max(score, 1) * unit)
        shrink = tl.exp2(top - new_top)
        weight = tl.exp2(score * unit - new_top[:, None])
        total = total * shrink + tl.sum(weight, 1)
        acc = tl.dot(weight.to(v.dtype), v, acc * shrink[:, None], input_precision=PRECISION)
        top = new_top
    return acc, total, top

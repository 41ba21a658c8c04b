"""What ranks exchange through memory of their GPUs that all of them reach: one kernel, on every rank the same.

Each rank has an area: words by which the others say how far they are, then two slots that it shows its tensors in by
turns. A block writes its part to the own slot, tells the same block of every rank, waits until all have told it, and
reads their parts. A slot is written again two exchanges later: by then every rank has told that it began the next one,
so it has read all of this one. All blocks take part in every exchange, whatever its size, or they would not agree on
which slot is whose turn.
"""

# ruff: noqa: N803 - capitals mark compile-time constants
from __future__ import annotations

import torch
import triton
import triton.language as tl

NUM_BLOCKS = 16  # all resident at the same time: they wait for one another
_BLOCK = 2048  # elements
MOST_RANKS = 16
FLAG_BYTES = MOST_RANKS * NUM_BLOCKS * 4  # [rank, block] int32: how many exchanges that block of that rank has begun


def area_bytes(slot_bytes: int) -> int:
    return FLAG_BYTES + 2 * slot_bytes


@triton.jit
def _flags(base):
    return base.to(tl.pointer_type(tl.int32))


@triton.jit
def _exchange(
    x,  # [n]
    out,  # [n] the sum, or [ranks, n]
    areas,  # [ranks] int64: addresses, as this rank has them
    counts,  # [NUM_BLOCKS] int32: exchanges so far
    n,
    rank,
    slot_bytes,
    FLAG_BYTES: tl.constexpr,
    NUM_RANKS: tl.constexpr,
    NUM_BLOCKS: tl.constexpr,
    SUMS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    block = tl.program_id(0)
    count = tl.load(counts + block) + 1  # goes round at 2**31: differences alone are looked at
    slot = FLAG_BYTES + (count & 1) * slot_bytes
    own = tl.load(areas + rank)
    shown = tl.multiple_of(own + slot, 16).to(tl.pointer_type(x.dtype.element_ty))
    for first in range(block * BLOCK, n, NUM_BLOCKS * BLOCK):
        at = first + tl.arange(0, BLOCK)
        tl.store(shown + at, tl.load(x + at, mask=at < n), mask=at < n)
    tl.debug_barrier()  # all threads have written before one tells
    for other in range(NUM_RANKS):
        flag = _flags(tl.load(areas + other)) + rank * NUM_BLOCKS + block
        tl.atomic_xchg(flag, count, sem="release", scope="sys")
    for other in range(NUM_RANKS):
        flag = _flags(own) + other * NUM_BLOCKS + block
        seen = tl.atomic_add(flag, 0, sem="acquire", scope="sys")
        while seen - count < 0:
            seen = tl.atomic_add(flag, 0, sem="acquire", scope="sys")
    tl.debug_barrier()  # one has seen that all were told, the others read
    for first in range(block * BLOCK, n, NUM_BLOCKS * BLOCK):
        at = first + tl.arange(0, BLOCK)
        total = tl.zeros((BLOCK,), tl.float32)
        for other in range(NUM_RANKS):
            theirs = tl.multiple_of(tl.load(areas + other) + slot, 16).to(tl.pointer_type(x.dtype.element_ty))
            value = tl.load(theirs + at, mask=at < n, volatile=True)
            if SUMS:
                total += value.to(tl.float32)
            else:
                tl.store(out + other * n + at, value, mask=at < n)
        if SUMS:
            tl.store(out + at, total.to(x.dtype.element_ty), mask=at < n)
    tl.store(counts + block, count)


def exchange(
    x: torch.Tensor, areas: torch.Tensor, counts: torch.Tensor, rank: int, slot_bytes: int, sums: bool
) -> torch.Tensor:
    """x: contiguous, at most slot_bytes; areas, counts: as above -> the sum in float32 in the order of ranks, rounded
    to x's type, or [ranks, *x.shape]"""
    out = torch.empty_like(x) if sums else x.new_empty((len(areas), *x.shape))
    sizes = (FLAG_BYTES, len(areas), NUM_BLOCKS, sums, _BLOCK)
    _exchange[(NUM_BLOCKS,)](x, out, areas, counts, x.numel(), rank, slot_bytes, *sizes, num_warps=8)
    return out

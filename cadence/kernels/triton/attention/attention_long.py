"""Attention of long prompts by a library's kernels: cuDNN's, which torch brings along.

They are faster on long prompts than what Triton can express, but know no pages, and see either all keys or the
triangle of a prompt's first tokens; and each shape costs a twentieth of a second when it is first met. So keys are
copied out of their pages, and queries and keys are taken in few sizes: a piece of queries meets its own keys, of which
it sees a triangle, and blocks of those before it, of which it sees all. What the parts give is merged by their sums of
weights. Pieces and blocks begin at multiples of a unit; the queries before the first and after the last are left.
"""

# ruff: noqa: N803 - capitals mark compile-time constants
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
import triton
import triton.language as tl

from cadence.device.torch_private import cudnn_attention
from cadence.kernels.interface.attention_batch import LARGE_RUN, LONG, AttentionShape, LongRun
from cadence.kernels.interface.ops import Pair
from cadence.kernels.triton.common.launch import quick
from cadence.kernels.triton.common.private import architecture

_FIRST = 90  # architecture on which these kernels were measured
_MOST_HEAD_DIM = 128


class Attend(Protocol):
    """A library's attention on dense tensors."""

    def suits(self, cache: torch.Tensor, shape: AttentionShape) -> bool: ...

    def __call__(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, scale: float) -> Pair:
        """q [1, Hq, n, D], k and v [1, Hk, m, D]; causal: query i sees keys up to i alone -> (out [1, Hq, n, D],
        logarithms of sums of weights [1, Hq, n, 1] float32)"""
        ...


class CudnnAttend:
    """An `Attend`."""

    def suits(self, cache: torch.Tensor, shape: AttentionShape) -> bool:
        fits = cache.element_size() == 2 and shape.head_dim <= _MOST_HEAD_DIM and shape.head_dim % 8 == 0
        return fits and cache.device.type == "cuda" and architecture() >= _FIRST and torch.backends.cudnn.is_available()

    def __call__(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, scale: float) -> Pair:
        return cudnn_attention(q, k, v, causal, scale)


@dataclass(frozen=True, slots=True)
class Sizes:
    """All are powers of two, and multiples of blocks of the cache."""

    unit: int = LONG  # of pieces and blocks
    queries: int = LARGE_RUN  # most of a piece
    keys: int = 2 * LARGE_RUN  # most of a block
    least: int = 2 * LARGE_RUN  # tokens of a sequence from which on it pays


def parts(begin: int, end: int, unit: int, most: int) -> Iterator[tuple[int, int]]:
    """Multiples of unit -> (where one begins, its length), lengths powers of two times unit."""
    while begin < end:
        length = min(1 << ((end - begin) // unit).bit_length() - 1, most // unit) * unit
        yield begin, length
        begin += length


@quick
@triton.jit(do_not_specialize=["table_ptr", "first_block"])
def _copy_keys(
    k_out, v_out, k_ptr, v_ptr, table_ptr, first_block, k_block, v_block,
    HEADS: tl.constexpr, BLOCK_SIZE: tl.constexpr, DIM: tl.constexpr, DIM_PAD: tl.constexpr,
):  # fmt: skip
    """A block of the cache, of one head -> k_out and v_out [keys, HEADS, DIM]."""
    block, head = tl.program_id(0), tl.program_id(1)
    page = tl.load(table_ptr + first_block + block).to(tl.int64)
    slot, dim = tl.arange(0, BLOCK_SIZE)[:, None], tl.arange(0, DIM_PAD)[None, :]
    inside = (dim < DIM) & (slot < BLOCK_SIZE)
    source = (head * BLOCK_SIZE + slot) * DIM + dim
    target = ((block * BLOCK_SIZE + slot).to(tl.int64) * HEADS + head) * DIM + dim
    tl.store(k_out + target, tl.load(k_ptr + page * k_block + source, inside), inside)
    tl.store(v_out + target, tl.load(v_ptr + page * v_block + source, inside), inside)


@quick
@triton.jit
def _merge(
    out_ptr, level_ptr, a_ptr, b_ptr, b_level_ptr,
    out_token, out_head, a_token, a_head, b_token, b_head, level_token, level_head, b_level_token, b_level_head,
    HEADS: tl.constexpr, HEADS_PAD: tl.constexpr, DIM: tl.constexpr, DIM_PAD: tl.constexpr,
):  # fmt: skip
    """Program t: out and level of query t, of those of a and b; out may be a."""
    token = tl.program_id(0).to(tl.int64)
    head, dim = tl.arange(0, HEADS_PAD), tl.arange(0, DIM_PAD)[None, :]
    exists = head < HEADS
    inside = exists[:, None] & (dim < DIM)
    a_level = tl.load(level_ptr + token * level_token + head * level_head, exists, other=0.0)
    b_level = tl.load(b_level_ptr + token * b_level_token + head * b_level_head, exists, other=0.0)
    top = tl.maximum(a_level, b_level)
    a_weight, b_weight = tl.exp(a_level - top), tl.exp(b_level - top)
    total = a_weight + b_weight
    a = tl.load(a_ptr + token * a_token + head[:, None] * a_head + dim, inside, other=0.0).to(tl.float32)
    b = tl.load(b_ptr + token * b_token + head[:, None] * b_head + dim, inside, other=0.0).to(tl.float32)
    merged = a * (a_weight / total)[:, None] + b * (b_weight / total)[:, None]
    tl.store(out_ptr + token * out_token + head[:, None] * out_head + dim, merged.to(out_ptr.dtype.element_ty), inside)
    tl.store(level_ptr + token * level_token + head * level_head, top + tl.log(total), exists)


def _merge_into(out: torch.Tensor, a: Pair, b: Pair) -> None:
    """out [n, Hq, D]; a and b as `Attend` gives them. The level of a becomes that of both."""
    tokens, heads, dim = out.shape
    level, b_level = a[1][0, :, :, 0], b[1][0, :, :, 0]  # [Hq, n]
    _merge[(tokens,)](
        out, level, a[0], b[0], b_level, out.stride(0), out.stride(1), a[0].stride(2), a[0].stride(1),
        b[0].stride(2), b[0].stride(1), level.stride(1), level.stride(0), b_level.stride(1), b_level.stride(0),
        HEADS=heads, HEADS_PAD=triton.next_power_of_2(heads), DIM=dim, DIM_PAD=triton.next_power_of_2(dim), num_warps=4,
    )  # fmt: skip


class LongAttention:
    def __init__(self, attend: Attend, sizes: Sizes) -> None:
        self._attend = attend
        self._sizes = sizes

    def span(self, run: LongRun, kv: Pair, shape: AttentionShape) -> tuple[int, int]:
        """Which of a run's queries it takes: from the first to one past the last; none: equal."""
        sizes, end = self._sizes, run.before + run.count
        special = shape.window or shape.chunk or shape.softcap or shape.bias.reach
        if end < sizes.least or special or not self._attend.suits(kv[0], shape):
            return 0, 0
        first = -(-run.before // sizes.unit) * sizes.unit
        last = end // sizes.unit * sizes.unit
        return (first - run.before, last - run.before) if first < last else (0, 0)

    def run(self, out: torch.Tensor, q: torch.Tensor, kv: Pair, table: torch.Tensor, begin: int, scale: float) -> None:
        """out, q [n, Hq, D]: the queries of a span, whose first stands at position `begin`. table [max_blocks] int32"""
        end, most_keys = begin + q.shape[0], self._sizes.keys
        for first, count in parts(begin, end, self._sizes.unit, self._sizes.queries):
            rows = slice(first - begin, first - begin + count)
            mine = q[rows].contiguous().transpose(0, 1).unsqueeze(0)  # queries may lie among keys and values
            found = self._attend(mine, *self._keys(kv, table, first, count), True, scale)
            target = out[rows]
            blocks = list(parts(0, first, self._sizes.unit, most_keys))
            for index, (start, length) in enumerate(blocks):
                other = self._attend(mine, *self._keys(kv, table, start, length), False, scale)
                is_last = index == len(blocks) - 1
                _merge_into(target if is_last else found[0][0].transpose(0, 1), found, other)
            if not blocks:
                target.copy_(found[0][0].transpose(0, 1))

    def _keys(self, kv: Pair, table: torch.Tensor, first: int, count: int) -> Pair:
        """Those of positions [first, first + count), copied: [1, Hk, count, D] each"""
        k, v = kv
        _, heads, block_size, dim = k.shape
        copied = torch.empty((2, count, heads, dim), dtype=k.dtype, device=k.device)
        _copy_keys[(count // block_size, heads)](
            copied[0], copied[1], k, v, table, first // block_size, k.stride(0), v.stride(0),
            HEADS=heads, BLOCK_SIZE=block_size, DIM=dim, DIM_PAD=triton.next_power_of_2(dim), num_warps=4,
        )  # fmt: skip
        return copied[0].transpose(0, 1).unsqueeze(0), copied[1].transpose(0, 1).unsqueeze(0)

"""Experts on Triton kernels. Tokens are sorted by their experts into tiles, each of one expert; there are as many tiles
as any routes could need, so that grids come from sizes the host knows.

Tiles are of one size, whatever the number of tokens, and no sum is split: a token's bits do not depend on others.
"""

# ruff: noqa: N803 - capitals mark compile-time constants
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from cadence.kernels.interface.expert_ops import ExpertStack, Routes
from cadence.kernels.reference.experts import LinearOp, ReferenceExpertOps
from cadence.kernels.triton.launch import quick

_ROWS = 16  # pairs of a token and one of its experts in a tile
_SUM_BLOCK = 1024
GateOp = Callable[[torch.Tensor], torch.Tensor]


@quick
@triton.jit
def expert_matmul(
    out_ptr, x_ptr, weight_ptr, pairs_ptr, tile_experts_ptr, num_pairs, outputs, x_stride,
    WIDTH: tl.constexpr, PER_LINE: tl.constexpr, ROWS: tl.constexpr, OUTPUTS: tl.constexpr, COLUMNS: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """out [num_pairs, outputs]: of pair p, line p // PER_LINE of x times its expert's weight [outputs, WIDTH].

    pairs [tiles, ROWS]: those of each tile, num_pairs where there is none; tile_experts [tiles], -1 = an empty tile.
    """
    expert = tl.load(tile_experts_ptr + tl.program_id(0))
    if expert >= 0:
        pair = tl.load(pairs_ptr + tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
        inside = pair < num_pairs
        output = tl.program_id(1) * OUTPUTS + tl.arange(0, OUTPUTS)
        column = tl.arange(0, COLUMNS)
        x_at = x_ptr + (pair // PER_LINE)[:, None] * x_stride + column[None, :]
        line = expert.to(tl.int64) * outputs + tl.minimum(output, outputs - 1)
        w_at = weight_ptr + line[None, :] * WIDTH + column[:, None]
        acc = tl.zeros([ROWS, OUTPUTS], tl.float32)
        for start in range(0, WIDTH, COLUMNS):
            some = start + column < WIDTH
            x = tl.load(x_at, inside[:, None] & some[None, :], other=0.0)
            w = tl.load(w_at, some[:, None], other=0.0)
            acc = tl.dot(x, w, acc, input_precision=PRECISION)
            x_at += COLUMNS
            w_at += COLUMNS
        place = out_ptr + pair[:, None] * outputs + output[None, :]
        tl.store(place, acc.to(out_ptr.dtype.element_ty), inside[:, None] & (output < outputs)[None, :])


@quick
@triton.jit
def add_routes(
    out_ptr, found_ptr, ids_ptr, shares_ptr, first, count,
    TOP_K: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """out [T, WIDTH] = the sum of shares [T, TOP_K] * found [T, TOP_K, WIDTH], of experts [first, first + count)."""
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.float32)
    for route in tl.static_range(TOP_K):
        pair = token * TOP_K + route
        expert = tl.load(ids_ptr + pair) - first
        own = (expert >= 0) & (expert < count)
        found = tl.load(found_ptr + pair * WIDTH + column, (column < WIDTH) & own, other=0.0).to(tl.float32)
        total += tl.where(own, tl.load(shares_ptr + pair), 0.0) * found
    tl.store(out_ptr + token * WIDTH + column, total.to(out_ptr.dtype.element_ty), column < WIDTH)


@dataclass(frozen=True, slots=True)
class ExpertTiles:
    pairs: torch.Tensor  # [tiles, _ROWS] int32: numbers of pairs; their number = none
    experts: torch.Tensor  # [tiles] int32: from the first on, -1 = an empty tile
    num_pairs: int

    @staticmethod
    def of(ids: torch.Tensor, first: int, count: int) -> ExpertTiles:
        """ids [T, top_k] int32 -> tiles of experts [first, first + count)."""
        num_pairs = ids.numel()
        num_tiles = triton.cdiv(num_pairs, _ROWS) + min(count, num_pairs)
        expert = ids.flatten().long() - first
        expert = torch.where((expert >= 0) & (expert < count), expert, count)  # those of others come last
        order = expert.sort(stable=True)
        sizes = (expert[:, None] == torch.arange(count + 1, device=ids.device)).sum(dim=0)
        tiles = (sizes + _ROWS - 1) // _ROWS
        tile_ends = tiles[:count].cumsum(dim=0)
        begins = sizes.cumsum(dim=0) - sizes
        inside = torch.arange(num_pairs, device=ids.device) - begins[order.values]  # place of a pair in its expert's
        place = (tile_ends - tiles[:count])[order.values.clamp(max=count - 1)] * _ROWS + inside
        place = torch.where(order.values < count, place, num_tiles * _ROWS)  # behind all tiles
        pairs = torch.full((num_tiles * _ROWS + 1,), num_pairs, dtype=torch.int32, device=ids.device)
        pairs.scatter_(0, place, order.indices.to(torch.int32))
        numbers = torch.arange(num_tiles, device=ids.device)
        experts = (numbers[:, None] >= tile_ends).sum(dim=1)
        experts = torch.where(experts < count, experts, -1).to(torch.int32)
        return ExpertTiles(pairs[:-1].view(num_tiles, _ROWS), experts, num_pairs)


class TritonExpertOps(ReferenceExpertOps):
    """Routes are what torch makes of them."""

    def __init__(self, linear: LinearOp, gates: tuple[GateOp, GateOp]) -> None:
        """gates: by silu, by gelu_tanh"""
        super().__init__(linear)
        self._gates = gates

    def product(self, x: torch.Tensor, routes: Routes, stack: ExpertStack, gelu: bool) -> torch.Tensor:
        x = x if x.stride(1) == 1 else x.contiguous()
        ids, shares = routes
        count, width, top_k = stack.gate_up.shape[0], x.shape[1], ids.shape[1]
        tiles = ExpertTiles.of(ids, stack.first, count)
        inner = self._gates[gelu](_multiplied(x, stack.gate_up, tiles, top_k))
        found = _multiplied(inner, stack.down, tiles, 1)
        out = torch.empty_like(x, memory_format=torch.contiguous_format)
        add_routes[(x.shape[0], triton.cdiv(width, _SUM_BLOCK))](
            out, found, ids, shares, stack.first, count, TOP_K=top_k, WIDTH=width, BLOCK=_SUM_BLOCK
        )
        return out


def _multiplied(x: torch.Tensor, weight: torch.Tensor, tiles: ExpertTiles, per_line: int) -> torch.Tensor:
    """x [pairs / per_line, in], weight [experts, out, in] -> [pairs, out]; of pairs in no tile, anything."""
    _, outputs, width = weight.shape
    out = torch.empty((tiles.num_pairs, outputs), dtype=x.dtype, device=x.device)
    precise = x.dtype is torch.float32
    block = 32 if precise else 64
    expert_matmul[(tiles.experts.shape[0], triton.cdiv(outputs, block))](
        out, x, weight, tiles.pairs, tiles.experts, tiles.num_pairs, outputs, x.stride(0),
        WIDTH=width, PER_LINE=per_line, ROWS=_ROWS, OUTPUTS=block, COLUMNS=32 if precise else 64,
        PRECISION="ieee" if precise else "tf32", num_warps=4, num_stages=3,
    )  # fmt: skip
    return out

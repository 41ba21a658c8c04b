"""Experts on Triton kernels: two products of tiles (`expert_tiles`) with stacks of matrices (`expert_stacks`), a gate
between them, and the sum of what each token's experts have made of it."""

# ruff: noqa: N803 - capitals mark compile-time constants
from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import triton
import triton.language as tl

from cadence.kernels.interface.expert_ops import ExpertStack, Routes
from cadence.kernels.interface.matrix import PackedMatrix
from cadence.kernels.reference.experts import LinearOp, ReferenceExpertOps
from cadence.kernels.triton.common.launch import quick
from cadence.kernels.triton.experts.expert_stacks import DenseStack, MatrixStack, stacked_experts
from cadence.kernels.triton.experts.expert_tiles import ExpertTiles

_SUM_BLOCK = 1024
GateOp = Callable[[torch.Tensor], torch.Tensor]


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


class TritonExpertOps(ReferenceExpertOps):
    """Routes are what torch makes of them."""

    def __init__(self, linear: LinearOp, gates: tuple[GateOp, GateOp]) -> None:
        """gates: by silu, by gelu_tanh"""
        super().__init__(linear)
        self._gates = gates

    def product(self, x: torch.Tensor, routes: Routes, stack: ExpertStack, gelu: bool) -> torch.Tensor:
        matrices = DenseStack(stack.gate_up), DenseStack(stack.down)
        return TritonExperts(matrices, stack.first, self._gates).product(x, routes, gelu)

    def packed(
        self, matrices: Sequence[tuple[PackedMatrix, PackedMatrix]], first: int, dtype: torch.dtype
    ) -> TritonExperts:
        gate_up, down = (stacked_experts([pair[place] for pair in matrices], dtype) for place in (0, 1))
        return TritonExperts((gate_up, down), first, self._gates)


class TritonExperts:
    """`PackedExperts` of two stacks, of gate and up, and of down."""

    def __init__(self, stacks: tuple[MatrixStack, MatrixStack], first: int, gates: tuple[GateOp, GateOp]) -> None:
        self.stacks = stacks
        self._first = first
        self._gates = gates

    def held(self) -> Sequence[object]:
        return self.stacks

    def product(self, x: torch.Tensor, routes: Routes, gelu: bool) -> torch.Tensor:
        x = x if x.stride(1) == 1 else x.contiguous()
        ids, shares = routes
        gate_up, down = self.stacks
        count, width, top_k = gate_up.count, x.shape[1], ids.shape[1]
        tiles = ExpertTiles.of(ids, self._first, count)
        inner = self._gates[gelu](gate_up.product(x, tiles, top_k))
        found = down.product(inner, tiles, 1)
        out = torch.empty_like(x, memory_format=torch.contiguous_format)
        add_routes[(x.shape[0], triton.cdiv(width, _SUM_BLOCK))](
            out, found, ids, shares, self._first, count, TOP_K=top_k, WIDTH=width, BLOCK=_SUM_BLOCK
        )
        return out

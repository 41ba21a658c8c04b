"""Experts in plain torch, one after another."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F

from cadence.kernels.interface.collectives import Collectives
from cadence.kernels.interface.expert_ops import ExpertStack, PackedExperts, Routes, Routing
from cadence.kernels.interface.matrix import PackedMatrix

LinearOp = Callable[[torch.Tensor, torch.Tensor, torch.Tensor | None], torch.Tensor]


class ReferenceExpertOps:
    def __init__(self, linear: LinearOp = F.linear) -> None:
        self._linear = linear

    def route(self, x: torch.Tensor, weight: torch.Tensor, routing: Routing) -> Routes:
        logits = self._linear(x, weight, None).float()
        order = logits if routing.sigmoid else logits.softmax(dim=-1)
        highest = order.sort(dim=-1, descending=True, stable=True)
        ids, shares = (found[:, : routing.top_k] for found in (highest.indices, highest.values))
        if routing.sigmoid:
            shares = shares.sigmoid()
        if routing.renormalise:
            shares = shares / shares.sum(dim=-1, keepdim=True)
        shares = (shares.to(x.dtype) if routing.rounded else shares).float()
        return ids.to(torch.int32).contiguous(), shares.contiguous()

    def weigh_inputs(self, x: torch.Tensor, routes: Routes) -> tuple[torch.Tensor, Routes]:
        ids, shares = routes
        return (x.float() * shares).to(x.dtype), (ids, torch.ones_like(shares))

    def product(self, x: torch.Tensor, routes: Routes, stack: ExpertStack, gelu: bool) -> torch.Tensor:
        ids, shares = routes
        found = x.new_zeros((*ids.shape, x.shape[1]), dtype=torch.float32)
        for index, (gate_up, down) in enumerate(zip(stack.gate_up, stack.down, strict=True)):
            token, place = (ids == stack.first + index).nonzero(as_tuple=True)
            gate, up = F.linear(x[token], gate_up).float().chunk(2, dim=-1)
            inner = F.gelu(gate, approximate="tanh") if gelu else F.silu(gate)
            found[token, place] = F.linear((inner * up).to(x.dtype), down).float()
        total = x.new_zeros(x.shape, dtype=torch.float32)
        for place in range(ids.shape[1]):
            total += shares[:, place, None] * found[:, place]
        return total.to(x.dtype)

    def packed(
        self, matrices: Sequence[tuple[PackedMatrix, PackedMatrix]], first: int, dtype: torch.dtype
    ) -> PackedExperts:
        raise TypeError("plain torch packs no matrices")

    def shared(
        self, matrices: Sequence[tuple[PackedMatrix, PackedMatrix]], first: int, total: int, ranks: Collectives
    ) -> PackedExperts:
        raise TypeError("engines share experts by the C kernels of the CPU alone")

"""Experts on kernels in C: tokens find their experts there, so that a recorded forward serves any routes."""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import Structure, addressof

import torch

from cadence.core.model.architectures import MOST_EXPERTS
from cadence.device.calls import Calls
from cadence.kernels.cpu.collectives import SLOT_BYTES, CpuCollectives
from cadence.kernels.cpu.packed.ops import PACKED_TYPES
from cadence.kernels.cpu.packed.products import CpuMatrix, PackedProducts
from cadence.kernels.cpu.runtime.library import Command, CpuLibrary
from cadence.kernels.cpu.runtime.row_words import dense_rows, row_words
from cadence.kernels.cpu.runtime.table import TABLE
from cadence.kernels.interface.collectives import Collectives
from cadence.kernels.interface.expert_ops import Routes, Routing
from cadence.kernels.interface.matrix import PackedMatrix
from cadence.kernels.reference.experts import ReferenceExpertOps


class ExpertSegments(Structure):
    """The matrices of one expert as C sees them."""

    _fields_ = TABLE.fields("Expert")


class CpuExpertOps(ReferenceExpertOps):
    """Of a model on a CPU every matrix is packed: the product of tensors is the reference's."""

    def __init__(self, calls: Calls, library: CpuLibrary, products: PackedProducts) -> None:
        super().__init__()
        self._calls = calls
        self._c = library
        self._products = products

    def route(self, x: torch.Tensor, weight: torch.Tensor, routing: Routing) -> Routes:
        x, (experts, width) = dense_rows(x), weight.shape
        if not routing.top_k <= experts <= MOST_EXPERTS or x.shape[1] != width:
            raise ValueError(f"x {list(x.shape)} cannot choose {routing.top_k} of {experts} experts of width {width}")
        shape = (x.shape[0], routing.top_k)
        ids, shares = self._calls.empty(shape, torch.int32), self._calls.empty(shape, torch.float32)
        self._c.route(
            ids=ids, shares=shares, x=x, weight=weight, rows=x.shape[0], width=width, experts=experts,
            top_k=routing.top_k, x_stride=x.stride(0), renormalise=int(routing.renormalise),
            rounded=int(routing.rounded), sigmoid=int(routing.sigmoid), dtype=x.dtype, weight_dtype=weight.dtype,
        )  # fmt: skip
        return ids, shares

    def weigh_inputs(self, x: torch.Tensor, routes: Routes) -> tuple[torch.Tensor, Routes]:
        x, (ids, shares) = dense_rows(x), routes
        out, ones = self._calls.empty(x.shape, x.dtype), self._calls.empty(shares.shape, torch.float32)
        self._c.weigh_inputs(**row_words(out, x), ones=ones, shares=shares, dtype=x.dtype)
        return out, (ids, ones)

    def packed(
        self, matrices: Sequence[tuple[PackedMatrix, PackedMatrix]], first: int, dtype: torch.dtype
    ) -> CpuExperts:
        """Of any type of activations."""
        return self._packed(matrices, first)

    def _packed(self, matrices: Sequence[tuple[PackedMatrix, PackedMatrix]], first: int) -> CpuExperts:
        return CpuExperts(self._calls, self._c, self._products, [_of_cpu(pair) for pair in matrices], first)

    def shared(
        self, matrices: Sequence[tuple[PackedMatrix, PackedMatrix]], first: int, total: int, ranks: Collectives
    ) -> SharedCpuExperts:
        if not isinstance(ranks, CpuCollectives):
            raise TypeError("experts are shared in memory that processes on CPUs share")
        return SharedCpuExperts(self._packed(matrices, first), total, ranks)


class CpuExperts:
    """`PackedExperts` of packed rows."""

    def __init__(
        self,
        calls: Calls,
        library: CpuLibrary,
        products: PackedProducts,
        matrices: Sequence[tuple[CpuMatrix, CpuMatrix]],
        first: int,
    ) -> None:
        self._calls = calls
        self._c = library
        self._products = products
        self._matrices = matrices  # what the segments point to
        self._first = first
        gate_up, down = matrices[0]
        self._hidden, self._width = gate_up.cols, down.cols
        sizes = (2 * self._width, self._hidden, self._hidden, self._width)
        if any((one.rows, one.cols, two.rows, two.cols) != sizes for one, two in matrices):
            raise ValueError("experts of one layer differ in their sizes")
        self._segments = (ExpertSegments * len(matrices))(*[_segments(*pair) for pair in matrices])

    def held(self) -> Sequence[object]:
        return self._matrices

    def product(self, x: torch.Tensor, routes: Routes, gelu: bool) -> torch.Tensor:
        return self._called(self._c.packed_experts, x, routes, gelu)

    def _called(self, command: Command, x: torch.Tensor, routes: Routes, gelu: bool, **more: int) -> torch.Tensor:
        """A command that has words of its own beside those of `packed_experts`."""
        wanted = x.dtype
        x = dense_rows(x) if wanted in PACKED_TYPES else self._products.converted(x, torch.float32)
        out = self._calls.empty(x.shape, x.dtype)
        ids, shares = routes
        command(
            y=out, x=x, ids=ids, shares=shares, experts=addressof(self._segments), first=self._first,
            count=len(self._segments), tokens=x.shape[0], top_k=ids.shape[1], hidden=self._hidden, width=self._width,
            x_stride=x.stride(0), dtype=x.dtype, gelu=int(gelu), isa=self._products.isa_index, **more,
        )  # fmt: skip
        return out if wanted in PACKED_TYPES else self._products.converted(out, wanted)

    def shared_product(self, x: torch.Tensor, routes: Routes, gelu: bool, **place: int) -> torch.Tensor:
        """place: the words of `shared_experts` that `packed_experts` lacks."""
        return self._called(self._c.shared_experts, x, routes, gelu, **place)


class SharedCpuExperts:
    """`PackedExperts` of which other processes, with tokens of their own, have some."""

    def __init__(self, own: CpuExperts, total: int, ranks: CpuCollectives) -> None:
        self._own = own
        self._total = total
        self._ranks = ranks

    def held(self) -> Sequence[object]:
        return self._own.held()

    def product(self, x: torch.Tensor, routes: Routes, gelu: bool) -> torch.Tensor:
        if x.shape[1] * 4 + 8 * routes[0].shape[1] > SLOT_BYTES // 2:
            raise ValueError(f"tokens of {x.shape[1]} entries are too long to be shared")
        place = {"shared": self._ranks.address, "rank": self._ranks.rank, "total": self._total}
        return self._own.shared_product(x, routes, gelu, **place)


def _of_cpu(pair: tuple[PackedMatrix, PackedMatrix]) -> tuple[CpuMatrix, CpuMatrix]:
    gate_up, down = pair
    if not isinstance(gate_up, CpuMatrix) or not isinstance(down, CpuMatrix):
        raise TypeError("matrices that were packed for other kernels")
    return gate_up, down


def _segments(gate_up: CpuMatrix, down: CpuMatrix) -> ExpertSegments:
    first, second = gate_up.packed, down.packed
    return ExpertSegments(first.address, len(first.weights), second.address, len(second.weights))

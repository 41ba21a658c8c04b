"""Feed-forward blocks of experts, of which a router gives each token a few.

As other blocks: `block(x, ctx)`, or `block.after(norm, x, residual, ctx)`: of norm(x + residual), with that sum.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

import torch
from torch import nn

from cadence.core.errors import ConfigError
from cadence.kernels.interface.expert_ops import ExpertStack, PackedExperts, Routes, Routing
from cadence.kernels.interface.matrix import PackedMatrix
from cadence.kernels.interface.overwrite import overwrite
from cadence.models.interface.build import BuildContext
from cadence.models.interface.model import ForwardContext
from cadence.models.interface.stage import Absent
from cadence.models.layers.linear import Linear
from cadence.models.layers.mlp import gates_by_gelu
from cadence.models.layers.norm import Norm
from cadence.models.layers.parameter import empty_parameter
from cadence.models.layers.rank_share import Held, expert_part, inner_part
from cadence.models.layers.weight import DenseWeight, KernelWeight, Stream, Weight


@dataclass(frozen=True, slots=True)
class ExpertsSpec:
    count: int
    hidden: int
    intermediate: int  # of each
    activation: str
    routing: Routing
    weigh_inputs: bool = False  # shares multiply what goes into experts, of which each token takes one


class ExpertProduct(Protocol):
    """What the experts of a layer make of tokens."""

    def product(self, x: torch.Tensor, routes: Routes, gelu: bool, ctx: ForwardContext) -> torch.Tensor:
        """x [T, hidden] -> [T, hidden]"""
        ...


class DenseExperts:
    """Tensors."""

    def __init__(self, stack: ExpertStack) -> None:
        self.stack = stack

    def product(self, x: torch.Tensor, routes: Routes, gelu: bool, ctx: ForwardContext) -> torch.Tensor:
        return ctx.ops.experts.product(x, routes, self.stack, gelu)


class KernelExperts:
    """Matrices in the form of the kernels that packed them."""

    def __init__(self, packed: PackedExperts) -> None:
        self.packed = packed

    def take(self, packed: PackedExperts) -> None:
        """Other values, in the memory that holds these; of another form, in its own."""
        if not overwrite(self.packed, packed):
            self.packed = packed

    def product(self, x: torch.Tensor, routes: Routes, gelu: bool, ctx: ForwardContext) -> torch.Tensor:
        return self.packed.product(x, routes, gelu)


class ExpertRouter(nn.Module):
    """Its matrix keeps the type of activations, whatever others are packed in."""

    weight: nn.Parameter  # [experts, hidden]

    def __init__(self, build: BuildContext, spec: ExpertsSpec) -> None:
        super().__init__()
        self.weight = empty_parameter(build, spec.count, spec.hidden)
        self._routing = spec.routing

    def forward(self, x: torch.Tensor, ctx: ForwardContext) -> Routes:
        return ctx.ops.experts.route(x, self.weight, self._routing)


class ExpertLinear(Linear):
    """A matrix of one expert. The layer multiplies by those of all its experts; by itself it does not."""

    takes_order = False  # tokens meet several experts as they are
    when_packed: Callable[[], None] = staticmethod(lambda: None)

    def use(self, weight: Weight) -> None:
        super().use(weight)
        self.when_packed()


class Expert(nn.Module):
    def __init__(self, gate_up: ExpertLinear, down: ExpertLinear) -> None:
        super().__init__()
        self.gate_up = gate_up
        self.down = down


class Experts(nn.Module):
    """Of ranks that share it, each has a part of every expert, or some of them whole; of engines, some whole."""

    def __init__(self, build: BuildContext, spec: ExpertsSpec) -> None:
        super().__init__()
        if not 0 < spec.routing.top_k <= spec.count:
            message = f"each token takes {spec.routing.top_k} of {spec.count} experts"
            raise ConfigError(message, "num_experts_per_tok")
        if spec.weigh_inputs and spec.routing.top_k > 1:
            message = f"each token takes {spec.routing.top_k} experts, whose inputs are weighed: one is supported"
            raise ConfigError(message, "num_experts_per_tok")
        self.own = expert_part(spec.count, build.expert_ranks)
        width = range(spec.intermediate) if build.whole_experts else inner_part(spec.intermediate, build.ranks)
        self.is_all = len(self.own) == spec.count and len(width) == spec.intermediate
        self.router = ExpertRouter(build, spec)
        device = torch.device("meta") if build.ops.packs else build.device
        gate_up = torch.empty((len(self.own), 2 * len(width), spec.hidden), dtype=build.dtype, device=device)
        down = torch.empty((len(self.own), spec.hidden, len(width)), dtype=build.dtype, device=device)
        inner, every = (spec.intermediate, width), (spec.hidden, range(spec.hidden))
        held_gate_up, held_down = Held({"gate": inner, "up": inner}, every), Held({"": every}, inner)

        def expert(index: int) -> Expert:
            place = index - self.own.start
            return Expert(
                gate_up=_linear(build, held_gate_up, gate_up[place]), down=_linear(build, held_down, down[place])
            )

        self.experts = nn.ModuleList(expert(index) if index in self.own else Absent() for index in range(spec.count))
        self._gelu = gates_by_gelu(spec.activation)
        self._weigh_inputs = spec.weigh_inputs
        self._product: ExpertProduct = DenseExperts(ExpertStack(gate_up, down, self.own.start))
        self._left = 2 * len(self.own)  # matrices that are not packed yet, if ever
        self.packed: KernelExperts | None = None  # once they are
        for linear in self._linears():
            linear.when_packed = partial(self._packed_one, build)

    def forward(self, x: torch.Tensor, ctx: ForwardContext) -> torch.Tensor:
        routes = self.router(x, ctx)
        if self._weigh_inputs:
            x, routes = ctx.ops.experts.weigh_inputs(x, routes)
        return self._product.product(x, routes, self._gelu, ctx)

    def after(
        self, norm: Norm, x: torch.Tensor, residual: torch.Tensor, ctx: ForwardContext, *, terms: bool = False
    ) -> Stream:
        normed, total = norm.add(x, residual, ctx)
        return self(normed, ctx), total

    @property
    def product(self) -> ExpertProduct:
        return self._product

    def use(self, product: ExpertProduct) -> None:
        """From now on these are its experts."""
        self._product = product

    def _packed_one(self, build: BuildContext) -> None:
        """Once all are packed, its experts multiply by them, in whatever form the ops give them together: no layer
        waits for the next, so that matrices are there twice of one layer at most."""
        self._left -= 1
        if self._left:
            return
        own = [expert for expert in self.experts if isinstance(expert, Expert)]
        packed = [(_matrix(expert.gate_up), _matrix(expert.down)) for expert in own]
        first, ops = self.own.start, build.ops.experts
        if build.whole_experts and build.ranks.size == 1:
            self._take(ops.shared(packed, first, len(self.experts), build.expert_ranks))
        else:
            self._take(ops.packed(packed, first, build.dtype))
        for linear in self._linears():
            size = linear.weight.rows, linear.weight.cols
            linear.weight = DenseWeight(torch.empty(size, dtype=build.dtype, device="meta"))
        self._left = 2 * len(self.own)  # of weights that may take the place of these

    def _take(self, packed: PackedExperts) -> None:
        if self.packed is not None:
            return self.packed.take(packed)
        self.packed = KernelExperts(packed)
        self.use(self.packed)

    @property
    def packed_together(self) -> list[ExpertLinear]:
        """Matrices of which all are packed again where one is."""
        return [] if self.packed is None else list(self._linears())

    def _linears(self) -> Iterator[ExpertLinear]:
        for expert in self.experts:
            if isinstance(expert, Expert):
                yield from (expert.gate_up, expert.down)


def _matrix(linear: ExpertLinear) -> PackedMatrix:
    if not isinstance(linear.weight, KernelWeight):
        raise TypeError("a matrix of an expert that no kernel has packed")
    return linear.weight.matrix


def _linear(build: BuildContext, held: Held, values: torch.Tensor) -> ExpertLinear:
    linear = ExpertLinear.shared(replace(build, device=torch.device("meta")), held)
    linear.use(DenseWeight(values))
    return linear

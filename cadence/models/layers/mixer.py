"""Where tokens meet those before them: attention, or a layer that keeps a state in place of keys.

`block(x, inputs, ctx)`, or `block.after(norm, x, residual, inputs, ctx)`: of norm(x + residual), with that sum.
"""

from __future__ import annotations

import torch
from torch import nn

from cadence.core.model.kv_spec import LayerKV
from cadence.core.model.state_spec import LayerState
from cadence.kernels.interface.rope_ops import NO_AXES, AxesTable
from cadence.models.interface.model import ForwardContext, ModelInputs
from cadence.models.interface.row_states import LayerTables
from cadence.models.interface.wanted import EVERY_TOKEN, Wanted
from cadence.models.layers.linear import Linear
from cadence.models.layers.norm import Norm
from cadence.models.layers.weight import Stream


class Mixer(nn.Module):
    """x [T, hidden] -> [T, hidden]: a projection, what a kind of mixer makes of it, a projection."""

    before_narrowing: tuple[str, ...] = ()  # its modules that all tokens reach, also where it narrows
    place = 0  # its index in the cache, among all layers that keep keys
    state_place = 0  # and among those of this device that keep a state
    narrows = False  # after its keys, or its state, only the wanted tokens go on

    def narrow(self) -> None:
        """Called by the model whose last block it is."""
        self.narrows = True

    def place_state(self, place: int) -> None:
        """Called by the model."""
        self.state_place = place

    @property
    def kv(self) -> LayerKV | None:
        """What it keeps of keys and values."""
        return None

    @property
    def state(self) -> LayerState | None:
        """What it keeps of a request in place of keys."""
        return None

    @property
    def axes(self) -> AxesTable:
        return NO_AXES

    @property
    def width(self) -> int:
        """Entries of what goes in and comes out."""
        return self.outer.weight.rows

    @property
    def inner(self) -> Linear:
        """The first projection."""
        raise NotImplementedError

    @property
    def outer(self) -> Linear:
        """The last one."""
        raise NotImplementedError

    def mix(self, projected: torch.Tensor, inputs: ModelInputs, ctx: ForwardContext) -> torch.Tensor:
        """projected [T, inner] -> [T, n], before the last projection; of the tokens that go on."""
        raise NotImplementedError

    def forward(self, x: torch.Tensor, inputs: ModelInputs, ctx: ForwardContext) -> torch.Tensor:
        return self.outer(self.mix(self.inner(x, ctx), inputs, ctx), ctx)

    def after(
        self,
        norm: Norm,
        x: torch.Tensor,
        residual: torch.Tensor,
        inputs: ModelInputs,
        ctx: ForwardContext,
        *,
        terms: bool = False,
    ) -> Stream:
        """terms: as `Linear` has it, of what comes out."""
        projected, residual = norm.add_linear(x, residual, self.inner, ctx)
        return self.outer(self.mix(projected, inputs, ctx), ctx, terms=terms), self.kept(residual, ctx)

    def kept(self, x: torch.Tensor, ctx: ForwardContext) -> torch.Tensor:
        """x [T, n] as it goes on beside what the block makes of it: of the tokens that its output is of."""
        return self.going_on(ctx).pick(x, ctx.ops)

    def going_on(self, ctx: ForwardContext) -> Wanted:
        return ctx.wanted if self.narrows else EVERY_TOKEN

    def tables(self, ctx: ForwardContext) -> LayerTables:
        """Where a mixer with a state has its rows' states."""
        return ctx.states.layers[self.state_place]

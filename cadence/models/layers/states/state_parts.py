"""What mixers that keep a state have in common: a short convolution, how fast heads or channels forget, a norm with a
gate. Ranks share heads and channels."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

from cadence.core.errors import ConfigError
from cadence.kernels.interface.state_ops import StateRuns
from cadence.models.interface.build import BuildContext
from cadence.models.interface.model import ForwardContext
from cadence.models.layers.derived import DerivedTable
from cadence.models.layers.norm import UnscaledNorm
from cadence.models.layers.parameter import HeldRows, empty_parameter
from cadence.models.layers.rank_share import Held, Share

_NONE: Share = (0, range(0))


class ShortConv(HeldRows):
    """x [T, C] -> [T, C], causal, each channel by itself, then silu where asked."""

    weight: nn.Parameter  # [C, taps]
    bias: nn.Parameter | None  # [C]

    def __init__(
        self, build: BuildContext, channels: Mapping[str, Share], taps: int, *, bias: bool, silu: bool
    ) -> None:
        """channels: by part, as they lie side by side in a checkpoint; "" = they are not divided"""
        super().__init__(Held(channels, _NONE))
        count = sum(self.held.own_rows.values())
        self.weight = empty_parameter(build, count, taps)
        self.bias = empty_parameter(build, count) if bias else None
        self.shape = (count, taps)
        self._silu = silu

    def forward(self, x: torch.Tensor, inputs: torch.Tensor, runs: StateRuns, ctx: ForwardContext) -> torch.Tensor:
        return ctx.ops.states.short_conv(x, self.weight, self.bias, inputs, runs, silu=self._silu)


class OfChannels(HeldRows):
    """Numbers of each head or channel, in float32."""

    weight: nn.Parameter  # [H] or [D], or [D, entries of each]

    def __init__(self, build: BuildContext, own: Share, *entries: int) -> None:
        super().__init__(Held({"": own}, _NONE))
        self.weight = empty_parameter(build, len(own[1]), *entries, dtype=torch.float32)


class Decay(DerivedTable):
    """How fast heads or channels forget: a = -exp(log), and what is added to their time steps."""

    a: torch.Tensor  # [H], or [entries of each, D]

    def __init__(self, build: BuildContext, own: Share, *entries: int) -> None:
        """entries: of a channel, each of which forgets by itself"""
        super().__init__()
        self.log = OfChannels(build, own, *entries)
        self.dt_bias = OfChannels(build, own)
        self.a = torch.empty((*entries, len(own[1])), dtype=torch.float32, device=build.device)

    def derive(self) -> None:
        self.a.copy_(-self.log.weight.exp().movedim(0, -1))


class GatedNorm(HeldRows):
    """x and gate [T, D] -> [T, D]: an RMS norm over each `group` entries, and silu of the gate, before it or after."""

    weight: nn.Parameter  # [D], or [group]

    def __init__(
        self, build: BuildContext, own: Share, group: int, eps: float, *, norm_first: bool, one_weight: bool = False
    ) -> None:
        """one_weight: for all groups"""
        super().__init__(Held({"": (group, range(group)) if one_weight else own}, _NONE))
        count, entries = own
        self._splits = bool(entries.start % group or entries.stop % group)
        if self._splits and len(entries) * build.ranks.size != count:
            message = f"tensor_parallel_size={build.ranks.size} does not divide {count} entries of a norm"
            raise ConfigError(message, "tensor_parallel_size")
        self.weight = empty_parameter(build, group if one_weight else len(entries))
        self._unscaled = UnscaledNorm(build, group, eps)
        self._own = slice(entries.start, entries.stop)
        self._ranks = build.ranks
        self._group, self._eps, self._norm_first = group, eps, norm_first

    def forward(self, x: torch.Tensor, gate: torch.Tensor, ctx: ForwardContext) -> torch.Tensor:
        states = ctx.ops.states
        if not self._splits:
            group, norm_first = self._group, self._norm_first
            return states.gated_norm(x, gate, self.weight, self._eps, group=group, norm_first=norm_first)
        normed = self._normed(x if self._norm_first else states.gate(x, gate, silu=True), ctx)
        scaled = states.gate(normed[:, self._own], self.weight.expand(x.shape), silu=False)
        return states.gate(scaled, gate, silu=True) if self._norm_first else scaled

    def _normed(self, x: torch.Tensor, ctx: ForwardContext) -> torch.Tensor:
        """x [T, D] of this rank -> [T, all], normed by groups of which ranks have parts."""
        every = self._ranks.all_gather(x)
        groups = every.view(every.shape[0], -1, self._group)
        return self._unscaled(groups, ctx).view(every.shape)


class NoGatedNorm(nn.Module):
    """The gate alone."""

    def forward(self, x: torch.Tensor, gate: torch.Tensor, ctx: ForwardContext) -> torch.Tensor:
        return ctx.ops.states.gate(x, gate, silu=True)

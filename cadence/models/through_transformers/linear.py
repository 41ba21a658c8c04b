"""Matrices in the places of transformers' linear maps, and its head."""

from __future__ import annotations

import torch
from torch import nn

from cadence.models.interface.build import BuildContext
from cadence.models.layers.embedding import Embedding, LMHead
from cadence.models.layers.linear import Linear
from cadence.models.layers.parameter import empty_parameter
from cadence.models.layers.rank_share import Held
from cadence.models.through_transformers.current import CurrentForward


class CalledLinear(Linear):
    """x [..., in] -> [..., out]. Called without a context, by code that takes it for a linear map of torch."""

    now: CurrentForward

    @classmethod
    def in_place_of(cls, build: BuildContext, held: Held, *, bias: bool, now: CurrentForward) -> CalledLinear:
        linear = cls.shared(build, held, bias=bias)
        linear.now = now
        return linear

    @property
    def in_features(self) -> int:
        return self.weight.cols

    @property
    def out_features(self) -> int:
        return self.weight.rows

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        rows = x.reshape(-1, x.shape[-1])
        return self.weight.linear(rows, self.bias, self.now.ctx).view(*x.shape[:-1], self.weight.rows)


class CalledHead(LMHead):
    """hidden [..., H] -> logits [..., V]"""

    bias: nn.Parameter | None  # [V]

    def __init__(
        self, build: BuildContext, tokens: Embedding, *, tied: bool, bias: bool, now: CurrentForward
    ) -> None:
        super().__init__(build, tokens, tied=tied)
        self.bias = empty_parameter(build, tokens.held.rows[""][0], dtype=torch.float32) if bias else None
        self.now = now

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        logits = super().forward(hidden.reshape(-1, hidden.shape[-1]), self.now.ctx)
        logits = logits if self.bias is None else logits + self.bias
        return logits.view(*hidden.shape[:-1], self.vocab_size)

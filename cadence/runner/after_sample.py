"""The hook after the sample: where a proposer drafts what follows the tokens of a forward."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from cadence.kernels.interface.row_ops import RowState, StepBatch
from cadence.models.interface.model import ForwardContext, LayerCache
from cadence.models.interface.model_proposer import TargetStates
from cadence.runner.layout import BatchLayout
from cadence.runner.shapes import StepShape

States = tuple[torch.Tensor, ...]  # [T, H] each: what `begins_with` says of the tokens of a forward

MANY = 2**31  # forwards


@dataclass(frozen=True, slots=True)
class BeginsWith:
    """What is kept of the target's forward."""

    states: TargetStates = TargetStates.NONE
    aux_layers: tuple[int, ...] = ()

    @property
    def every_token(self) -> bool:
        """The forward's last states are wanted of every token, not of lines alone."""
        return self.states is TargetStates.TOKENS

    def of(self, hidden: torch.Tensor, ctx: ForwardContext) -> States:
        """hidden: what a forward with `ctx` returned"""
        if self.states is TargetStates.AUX:
            return ctx.aux.states
        return (hidden,) if self.every_token else ()


class AfterSample(Protocol):
    """At most one feature has it."""

    begins_with: BeginsWith
    by_model: bool  # after a forward a model makes the plan's most drafts for all rows

    def use_caches(self, caches: Sequence[LayerCache]) -> None:
        """Of all layers, the target's and others."""
        ...

    def name(self, layout: BatchLayout, shape: StepShape) -> int:
        """What is in the layout is what the next forwards of this shape compute, and draft for: once, or again and
        again -> how many there may be before it is named again, at least those of the shape"""
        ...

    def repeated(self, layout: BatchLayout, depth: int, num_forwards: int) -> None:
        """So many forwards more than its shape has were made of a layout that was named, with `depth` drafts after
        each."""
        ...

    def propose(self, state: RowState, batch: StepBatch, states: States) -> None:
        """After the commit of the batch that was named. It may be recorded, with the shape that was named."""
        ...


class NothingAfter:
    """Nothing is proposed, or another stage proposes. The states that it begins with may be made here."""

    by_model = False

    def __init__(self, aux_layers: Sequence[int] = ()) -> None:
        self.begins_with = BeginsWith(aux_layers=tuple(aux_layers))

    def use_caches(self, caches: Sequence[LayerCache]) -> None:
        """It keeps no keys."""

    def name(self, layout: BatchLayout, shape: StepShape) -> int:
        return MANY

    def repeated(self, layout: BatchLayout, depth: int, num_forwards: int) -> None:
        """Nothing is counted here."""

    def propose(self, state: RowState, batch: StepBatch, states: States) -> None:
        """Nothing."""

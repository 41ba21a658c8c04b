"""What the runner knows of a loop of forwards: `StepLoop` on the last stage, or the only one, `StageLoop` on others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from cadence.core.contract.step import StepPlan
from cadence.runner.after_sample import States
from cadence.runner.feature import HiddenHook, Observation
from cadence.runner.layout import BatchLayout
from cadence.runner.parts import Part
from cadence.runner.shapes import StepShape, Until, WantedShapes


@dataclass(frozen=True, slots=True)
class ForwardCount:
    most: int  # forwards that may be queued
    together: int  # of these, the tokens of so many may come back at once


ONE = ForwardCount(1, 1)


_NO_LOGITS = torch.zeros((0, 0))


@dataclass(frozen=True, slots=True)
class Computed:
    """A forward whose tokens are yet to be chosen."""

    layout: BatchLayout
    width: int = 1  # lines of a row, drafts that did not exist included
    until: Until = Until.LOGITS  # how far it went
    logits: torch.Tensor = _NO_LOGITS  # [L, V]
    states: States = ()  # what drafts begin with
    observations: Sequence[Observation] = ()


class ForwardLoop(Protocol):
    def await_rows_of(self, plan: StepPlan) -> None:
        """Rows are about to end or to begin by it: what forwards before have brought them is here."""
        ...

    def await_rows(self, rows: Sequence[int]) -> None:
        """The same, of rows that end outside any plan, or that a feature writes."""
        ...

    def wanted(self) -> WantedShapes:
        """What is worth recording before it is met."""
        ...

    def prepare(self, shape: StepShape) -> None:
        """Records it, on the dummy row alone."""
        ...

    def launch(
        self, layout: BatchLayout, draws: bool, hooks: Sequence[HiddenHook], depth: int, count: ForwardCount = ONE
    ) -> Part:
        """Queues one or more forwards, several only where there is a line after every token. draws: the rows want
        tokens and nothing else. depth: drafts that rows may have after each."""
        ...

    def compute(self, layout: BatchLayout, hooks: Sequence[HiddenHook], depth: int) -> Computed:
        """Queues one forward up to its logits. Nothing else may be launched before `choose`."""
        ...

    def choose(self, computed: Computed, waiting: Sequence[int] = ()) -> Part:
        """Queues the rest of it, with whatever its rows ask for. waiting: rows for which there was mail."""
        ...


def until_of(layout: BatchLayout, draws: bool, hooks: Sequence[HiddenHook]) -> Until:
    """How far a forward goes by itself. draws: its rows want tokens and nothing else"""
    if hooks:
        return Until.HIDDEN
    if not layout.num_lines:
        return Until.KEYS
    return Until.TOKENS if draws else Until.LOGITS

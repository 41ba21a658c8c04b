"""The device half of a feature, as the runner and the step loop know it. They name no feature."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch

from cadence.core.contract.step import RowOutput
from cadence.core.contract.table import RequestTable
from cadence.core.model.state_spec import StateRoom
from cadence.kernels.interface.row_ops import StepBatch
from cadence.models.interface.model import ForwardContext, LayerCache
from cadence.runner.layout import BatchLayout
from cadence.sample.prompt_slice import PromptSlice


class InputHook(Protocol):
    """Gives forwards of the rows that use a feature more than tokens and positions."""

    name: str  # the feature's

    def joins(self, layout: BatchLayout) -> bool:
        """Whether one of its rows uses it in this forward."""
        ...

    def extend(self, ctx: ForwardContext, batch: StepBatch) -> ForwardContext:
        """Of a forward whose batch was gathered, where some row uses it. It may be recorded: all is found by the
        device."""
        ...


class Report(Protocol):
    """What a feature reports to the host of a forward: tensors to fetch, and how to read them."""

    def tensors(self) -> list[torch.Tensor]: ...

    def unpack(self, arrays_np: list[np.ndarray]) -> Any:
        """-> the feature's payload of the result; nothing, if it is empty"""
        ...


class Reporter(Protocol):
    name: str  # the feature's

    def report(self, waiting: Sequence[int]) -> Report:
        """Of a forward that was committed, for whose rows `waiting` there was mail."""
        ...


class Observation(Protocol):
    """What a hook on the hidden states gives: tensors to fetch, and how to read them."""

    def tensors(self) -> list[torch.Tensor]: ...

    def unpack(self, arrays_np: list[np.ndarray]) -> Mapping[int, RowOutput]:
        """-> by row"""
        ...


class HiddenHook(Protocol):
    """Looks at the hidden states of a forward for the rows that asked for it."""

    def active(self, rows_np: np.ndarray) -> bool: ...

    def collect(
        self,
        hidden: torch.Tensor,
        step: PromptSlice,
        ctx: ForwardContext,
        logits_fn: Callable[[torch.Tensor], torch.Tensor],
    ) -> Observation:
        """hidden [T, H]; ctx: of heads on some of these; logits_fn: tokens [n] of the T -> logits [n, V]"""
        ...

    def pass_over(self, step: PromptSlice) -> None:
        """Another stage collects from this forward."""
        ...


class DeviceFeature:
    """Carries out what its host half sends. Methods do nothing by default."""

    name: str  # as `core/contract/features.py` has it
    tables: Sequence[RequestTable] = ()  # told of rows that begin and end
    inputs: Sequence[InputHook] = ()
    reporters: Sequence[Reporter] = ()
    hooks: Sequence[HiddenHook] = ()

    def use_caches(self, caches: Sequence[LayerCache]) -> None:
        """Of the model's layers, by layer, from now on."""

    def allocate(self, room: StateRoom) -> None:
        """There is memory for so many states, from now on."""

    def memory(self) -> Sequence[torch.Tensor]:
        """Large tensors of which nothing is needed where no row is in use and nothing is cached."""
        return ()

    def rows_of(self, payload: Any) -> Sequence[int]:
        """Running rows that `apply` writes: the results of earlier forwards must be here for them."""
        return ()

    def apply(self, payload: Any) -> None:
        """Of a plan: after rows have ended, before others begin."""

    def largest(self) -> Any:
        """-> the payload of a plan that takes most memory and names no row, to be tried beforehand; None = none does"""
        return None

    def mark(self, layout: BatchLayout, payload: Any) -> BatchLayout:
        """The layout of a plan's first forward, with what the plan says of it."""
        return layout

    def post(self, payload: Any) -> None:
        """Of the mail, before the tokens of the rows that wait for it are chosen."""

"""The forward that runs, for modules that transformers calls without a context."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from cadence.models.interface.model import ForwardContext, ModelInputs


def as_rows(x: torch.Tensor) -> torch.Tensor:
    """x [..., n] -> [T, n]: a view where it can be one, which is all that a recording takes"""
    return x.view(-1, x.shape[-1]) if x.is_contiguous() else x.reshape(-1, x.shape[-1])


class NoForwardError(RuntimeError):
    """A module was called outside of its model's forward."""


class CurrentForward:
    """Each model has one of its own, which its modules hold: two models, or two threads with a model each, share
    nothing."""

    def __init__(self) -> None:
        self._ctx: ForwardContext | None = None
        self._inputs: ModelInputs | None = None

    @property
    def ctx(self) -> ForwardContext:
        if self._ctx is None:
            raise NoForwardError("no forward of this model runs")
        return self._ctx

    @property
    def runs(self) -> bool:
        return self._ctx is not None

    @property
    def inputs(self) -> ModelInputs:
        if self._inputs is None:
            raise NoForwardError("no forward of this model runs on tokens")
        return self._inputs

    @contextmanager
    def running(self, ctx: ForwardContext, inputs: ModelInputs | None = None) -> Iterator[None]:
        """inputs: None of logits, which are made of hidden states"""
        self._ctx, self._inputs = ctx, inputs
        try:
            yield
        finally:
            self._ctx = self._inputs = None

"""How the residual stream comes into a stage of the model, and how it leaves one that is not the last."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import nn

from cadence.kernels.interface.links import StageLinks
from cadence.models.interface.model import ForwardContext, ModelInputs
from cadence.models.layers.norm import UnfusedNorm
from cadence.models.layers.weight import Stream


class StageEntry(Protocol):
    def enter(self, inputs: ModelInputs, ctx: ForwardContext) -> Stream: ...


class FromTokens:
    def __init__(self, embed: nn.Module) -> None:
        self._embed = embed

    def enter(self, inputs: ModelInputs, ctx: ForwardContext) -> Stream:
        x = ctx.overlay.laid_over(self._embed(inputs, ctx))
        return x, ctx.ops.zeros_like(x)


class FromStage:
    """The stream as the stage before has left it, and what was kept of it on the way for those who draft."""

    def __init__(self, links: StageLinks, size: int, dtype: torch.dtype, first: int) -> None:
        """size: entries of the stream; first: layer of this stage"""
        self._links = links
        self._size = size
        self._dtype = dtype
        self._first = first

    def enter(self, inputs: ModelInputs, ctx: ForwardContext) -> Stream:
        shape = (inputs.ids.shape[0], self._size)
        for layer in ctx.aux.layers:
            if layer < self._first:
                ctx.aux.put(layer, self._links.receive(shape, self._dtype))
        return self._links.receive(shape, self._dtype), self._links.receive(shape, self._dtype)


class ToStage(UnfusedNorm):
    """In the place of the last norm: hands the stream on as it is."""

    def __init__(self, links: StageLinks, end: int) -> None:
        """end: after the last layer of this stage"""
        super().__init__()
        self._links = links
        self._end = end

    def add(self, x: torch.Tensor, residual: torch.Tensor, ctx: ForwardContext) -> Stream:
        for layer in ctx.aux.layers:
            if layer < self._end:
                self._links.send(ctx.aux.of(layer))
        self._links.send(x)
        self._links.send(residual)
        return x, residual

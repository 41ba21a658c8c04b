"""Forwards that were recorded, by their shape, to be replayed in one call."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from cadence.device.base import Device, Graph
from cadence.runner.shapes import StepShape

_logger = logging.getLogger(__name__)

_MOST = 512  # that are kept; of shapes that are not padded there is no end


@dataclass(frozen=True, slots=True)
class StepOutputs:
    """What the last forward of a shape leaves, good until the next run."""

    hidden: torch.Tensor  # [T, H], or of the lines alone [L, H]
    logits: torch.Tensor  # [L, V]; empty in a shape that ends before
    states: tuple[torch.Tensor, ...] = ()  # [T, H] each: what drafts begin with


class StepGraphs:
    """Beyond a number, those that were not used for the longest time are given up."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._graphs: dict[StepShape, Graph[StepOutputs]] = {}

    def __contains__(self, shape: object) -> bool:
        return shape in self._graphs

    def run(self, shape: StepShape, work: Callable[[], StepOutputs]) -> StepOutputs:
        """Does the work, exactly once, whether its shape is met for the first time or not."""
        if not shape.recorded:
            return work()
        graph = self._graphs.pop(shape, None)
        if graph is not None:
            self._graphs[shape] = graph  # the last is the one used last
            return graph.replay(work)
        if len(self._graphs) >= _MOST:
            del self._graphs[next(iter(self._graphs))]
        start = time.perf_counter()
        self._graphs[shape], outputs = self._device.record(work)
        _logger.debug("recorded %s in %.2f s", shape, time.perf_counter() - start)
        return outputs

    def forget(self) -> None:
        self._graphs.clear()

    def forget_with(self, feature: str) -> None:
        """Those of forwards that get more by this feature's input hook."""
        for shape in [shape for shape in self._graphs if feature in shape.inputs]:
            del self._graphs[shape]

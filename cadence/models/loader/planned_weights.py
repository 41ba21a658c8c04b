"""A checkpoint's tensors under other names, out of stacks, or made of several."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from cadence.kernels.interface.scaled_numbers import ScaledNumbers
from cadence.models.loader.source import KVScales, WeightsSource
from cadence.models.tensor_plan import TensorPlan


class PlannedWeights:
    """A `WeightsSource`. What has another name alone stays in the form that it is stored in."""

    def __init__(self, source: WeightsSource, plan: TensorPlan) -> None:
        self._source = source
        self._plan = plan

    def names(self) -> Sequence[str]:
        return [*self._plan.plain, *self._plan.parts, *self._plan.made]

    def shape(self, name: str) -> tuple[int, ...]:
        if (own := self._plan.plain.get(name)) is not None:
            return tuple(self._source.shape(own))
        if (part := self._plan.parts.get(name)) is not None:
            return part.rows[1] - part.rows[0], tuple(self._source.shape(part.stack))[2]
        return self._plan.shapes[name]

    def load(self, name: str) -> torch.Tensor:
        if (own := self._plan.plain.get(name)) is not None:
            return self._source.load(own)
        if (part := self._plan.parts.get(name)) is not None:
            return self._source.load(part.stack)[part.index, part.rows[0] : part.rows[1]]
        return self._plan.made[name].run(self._source.load)[name]

    def blocks(self, name: str, transposed: bool) -> tuple[str, torch.Tensor] | None:
        own = self._plan.plain.get(name)
        return None if own is None else self._source.blocks(own, transposed)

    def numbers(self, name: str) -> ScaledNumbers | None:
        own = self._plan.plain.get(name)
        return None if own is None else self._source.numbers(own)

    def order(self, name: str) -> torch.Tensor | None:
        own = self._plan.plain.get(name)
        return None if own is None else self._source.order(own)

    def kv_scales(self) -> KVScales:
        return self._source.kv_scales()

    def release(self, name: str) -> None:
        if (own := self._plan.plain.get(name)) is not None:
            self._source.release(own)

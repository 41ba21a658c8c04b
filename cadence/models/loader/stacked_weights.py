"""Tensors that hold a matrix of every expert, [experts, rows, columns], given as the matrices they are."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from cadence.kernels.interface.scaled_numbers import ScaledNumbers
from cadence.models.loader.source import KVScales, WeightsSource
from cadence.models.weight_map import WeightMap

_STACK_DIMS = 3


class UnstackedWeights:
    """A `WeightsSource`: "a.experts.weight" is "a.experts.0.weight", "a.experts.1.weight", …"""

    def __init__(self, source: WeightsSource, stacks: Sequence[str]) -> None:
        """stacks: names of those that are"""
        self._source = source
        self._parts = {
            f"{stem}.{index}.{kind}": (name, index)
            for name in stacks
            for stem, _, kind in [name.rpartition(".")]
            for index in range(source.shape(name)[0])
        }
        self._names = [name for name in source.names() if name not in stacks] + list(self._parts)

    def names(self) -> Sequence[str]:
        return self._names

    def shape(self, name: str) -> tuple[int, ...]:
        if name in self._parts:
            return self._source.shape(self._parts[name][0])[1:]
        return self._source.shape(name)

    def load(self, name: str) -> torch.Tensor:
        if name in self._parts:
            stack, index = self._parts[name]
            return self._source.load(stack)[index]
        return self._source.load(name)

    def blocks(self, name: str, transposed: bool) -> tuple[str, torch.Tensor] | None:
        return None if name in self._parts else self._source.blocks(name, transposed)

    def numbers(self, name: str) -> ScaledNumbers | None:
        return None if name in self._parts else self._source.numbers(name)

    def order(self, name: str) -> torch.Tensor | None:
        return None if name in self._parts else self._source.order(name)

    def kv_scales(self) -> KVScales:
        return self._source.kv_scales()

    def release(self, name: str) -> None:
        self._source.release(self._parts[name][0] if name in self._parts else name)


def has_stacks(source: WeightsSource) -> bool:
    """Whether a tensor may be one."""
    return any(len(source.shape(name)) == _STACK_DIMS for name in source.names())


def unstacked(source: WeightsSource, weights: WeightMap) -> WeightsSource:
    """With a tensor for each expert's matrix."""
    stacks = [name for name in source.names() if weights.is_stack(name) and len(source.shape(name)) == _STACK_DIMS]
    return UnstackedWeights(source, stacks) if stacks else source

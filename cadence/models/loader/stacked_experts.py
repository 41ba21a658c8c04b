"""Experts that a checkpoint has in one tensor, [experts, ...], each under a name of its own."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from cadence.core.architectures import MOST_EXPERTS
from cadence.core.errors import WeightsError
from cadence.kernels.interface.scaled_numbers import ScaledNumbers
from cadence.models.loader.source import KVScales, WeightsSource
from cadence.models.weight_map import WeightMap

_DIMS = 3
_WEIGHT = ".weight"


class StackedExperts:
    """A `WeightsSource`: NAME.weight, or NAME, of experts is NAME.0.weight, NAME.1.weight and so on here."""

    def __init__(self, source: WeightsSource, names: Sequence[str]) -> None:
        """names: of the tensors that have all experts"""
        self._source = source
        self._parts = {part: (name, index) for name in names for index, part in enumerate(_parts(source, name))}
        stacked = set(names)
        own = {name: [name] for name in source.names()} | {name: _parts(source, name) for name in stacked}
        self._names = [part for parts in own.values() for part in parts]
        self._left = {name: len(own[name]) for name in stacked}  # parts that nobody has released yet

    def names(self) -> Sequence[str]:
        return self._names

    def shape(self, name: str) -> tuple[int, ...]:
        if name not in self._parts:
            return self._source.shape(name)
        return tuple(self._source.shape(self._parts[name][0]))[1:]

    def load(self, name: str) -> torch.Tensor:
        if name not in self._parts:
            return self._source.load(name)
        stacked, index = self._parts[name]
        return self._source.load(stacked)[index]

    def blocks(self, name: str, transposed: bool) -> tuple[str, torch.Tensor] | None:
        return None if name in self._parts else self._source.blocks(name, transposed)

    def numbers(self, name: str) -> ScaledNumbers | None:
        return None if name in self._parts else self._source.numbers(name)

    def order(self, name: str) -> torch.Tensor | None:
        return None if name in self._parts else self._source.order(name)

    def kv_scales(self) -> KVScales:
        return self._source.kv_scales()

    def release(self, name: str) -> None:
        if name not in self._parts:
            self._source.release(name)
            return
        stacked, _ = self._parts[name]
        self._left[stacked] -= 1
        if self._left[stacked] == 0:
            self._source.release(stacked)


def with_each_expert(source: WeightsSource, weights: WeightMap) -> WeightsSource:
    names = [name for name in source.names() if weights.is_stacked(name)]
    return StackedExperts(source, names) if names else source


def _parts(source: WeightsSource, name: str) -> list[str]:
    shape = source.shape(name)
    if len(shape) != _DIMS or not 0 < shape[0] <= MOST_EXPERTS:
        raise WeightsError(f"tensor {name!r} of experts has shape {list(shape)}, where [experts, rows, columns] is due")
    stem = name.removesuffix(_WEIGHT)
    return [f"{stem}.{index}{name[len(stem) :]}" for index in range(shape[0])]

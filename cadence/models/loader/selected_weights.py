"""Some of a checkpoint's tensors: one file may hold a model and a head for it."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch

from cadence.kernels.interface.scaled_numbers import ScaledNumbers
from cadence.models.loader.source import KVScales, WeightsSource


class SelectedWeights:
    """A `WeightsSource` of the tensors whose names begin with one of `only` and with none of `without`."""

    def __init__(self, source: WeightsSource, only: tuple[str, ...] = ("",), without: tuple[str, ...] = ()) -> None:
        self._source = source
        self._names = [name for name in source.names() if name.startswith(only) and not name.startswith(without)]

    @classmethod
    def named(cls, source: WeightsSource, names: Collection[str]) -> SelectedWeights:
        """Of these."""
        selected = cls(source, only=())
        selected._names = [name for name in source.names() if name in names]
        return selected

    def names(self) -> Sequence[str]:
        return self._names

    def shape(self, name: str) -> tuple[int, ...]:
        return self._source.shape(name)

    def load(self, name: str) -> torch.Tensor:
        return self._source.load(name)

    def blocks(self, name: str, transposed: bool) -> tuple[str, torch.Tensor] | None:
        return self._source.blocks(name, transposed)

    def numbers(self, name: str) -> ScaledNumbers | None:
        return self._source.numbers(name)

    def order(self, name: str) -> torch.Tensor | None:
        return self._source.order(name)

    def kv_scales(self) -> KVScales:
        return self._source.kv_scales()

    def release(self, name: str) -> None:
        self._source.release(name)

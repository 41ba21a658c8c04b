"""The tensors of a checkpoint as one of several ranks has them: of a matrix that ranks share, its rows and columns, in
the order in which a model has them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from cadence.kernels.interface.scaled_numbers import ScaledNumbers, kept
from cadence.models.layers.parameter import HeldRows
from cadence.models.layers.weight import WeightHolder
from cadence.models.loader.assign import Copy, copies_of
from cadence.models.loader.source import KVScales, WeightsSource
from cadence.models.mapped_module import MappedModule
from cadence.models.quant.block_kinds import block_size

Ranges = tuple[range, ...]


@dataclass(frozen=True, slots=True)
class Cut:
    """Of a tensor of this shape, the ranges that are kept of each dimension, in order."""

    whole: tuple[int, ...]
    keeps: tuple[Ranges, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(sum(map(len, ranges)) for ranges in self.keeps)

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        for dim, ranges in enumerate(self.keeps):
            tensor = kept(tensor, dim, ranges)
        return tensor


class SlicedWeights:
    """A `WeightsSource`. Tensors without a cut are as they are."""

    def __init__(self, source: WeightsSource, cuts: Mapping[str, Cut]) -> None:
        self._source = source
        self._cuts = cuts

    def names(self) -> Sequence[str]:
        return self._source.names()

    def shape(self, name: str) -> tuple[int, ...]:
        """Of one that is not what it should be, all of it: it fits nowhere."""
        whole = tuple(self._source.shape(name))
        cut = self._cuts.get(name)
        return whole if cut is None or whole != cut.whole else cut.shape

    def load(self, name: str) -> torch.Tensor:
        tensor = self._source.load(name)
        return self._cuts[name].of(tensor) if name in self._cuts else tensor

    def blocks(self, name: str, transposed: bool) -> tuple[str, torch.Tensor] | None:
        if not self._has_columns(name) and self._source.order(name) is not None:
            return None
        found = self._source.blocks(name, transposed)
        if found is None or name not in self._cuts:
            return found
        cut, (kind, data) = self._cuts[name], found
        rows, columns = cut.keeps[::-1] if transposed else cut.keeps
        count, width = cut.whole[::-1] if transposed else cut.whole
        values, num_bytes = block_size(kind)
        if any(edge % values for own in columns for edge in (own.start, own.stop)):
            return None  # a block belongs to two ranks
        by_block = kept(data.view(count, width // values, num_bytes), 0, rows)
        in_blocks = tuple(range(own.start // values, own.stop // values) for own in columns)
        return kind, kept(by_block, 1, in_blocks).reshape(-1)

    def numbers(self, name: str) -> ScaledNumbers | None:
        if not self._has_columns(name) and self._source.order(name) is not None:
            return None
        found = self._source.numbers(name)
        if found is None or name not in self._cuts:
            return found
        rows, columns = self._cuts[name].keeps
        return found.of_rows(rows).of_columns(columns)

    def order(self, name: str) -> torch.Tensor | None:
        """None too where a rank has some of the columns: it has no blocks of them."""
        return self._source.order(name) if self._has_columns(name) else None

    def kv_scales(self) -> KVScales:
        return self._source.kv_scales()

    def release(self, name: str) -> None:
        self._source.release(name)

    def _has_columns(self, name: str) -> bool:
        """Whether all columns of a matrix are kept."""
        cut = self._cuts.get(name)
        return cut is None or cut.shape[-1] == cut.whole[-1]


def sliced(source: WeightsSource, model: MappedModule, whole: WeightsSource | None = None) -> WeightsSource:
    """model: with shapes alone. whole: what the source is some of, where it lacks tensors of the model"""
    cuts = {copy.name: cut for copy in copies_of(model, whole or source) if (cut := _cut_of(copy))}
    return SlicedWeights(source, cuts) if cuts else source


def _cut_of(copy: Copy) -> Cut | None:
    module = copy.slot.module
    if not isinstance(module, WeightHolder | HeldRows) or module.held.has(copy.rule.part):
        return None
    num_rows, rows = module.held.stored_rows(copy.rule.part)
    if isinstance(module, HeldRows):
        inner = copy.expected_shape()[1:]
        return Cut((num_rows, *inner), (rows, *((range(size),) for size in inner)))
    if copy.target.dim() == 1:
        return Cut((num_rows,), (rows,))
    num_columns, columns = module.held.columns
    whole, keeps = (num_rows, num_columns), (rows, (columns,))
    return Cut(whole[::-1], keeps[::-1]) if copy.rule.transpose else Cut(whole, keeps)

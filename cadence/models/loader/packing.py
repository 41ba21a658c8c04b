"""Who takes a model's matrices in a form of its own, instead of having them copied."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch

from cadence.kernels.interface.matrix import MatrixPacker, PackedMatrix
from cadence.models.layers.weight import KernelWeight, WeightHolder
from cadence.models.loader.source import WeightsSource
from cadence.models.loader.values import as_ours
from cadence.models.quant.wider_blocks import wider_blocks
from cadence.models.weight_map import Rule

Piece = tuple[str, Rule]  # a tensor of the checkpoint, and how it differs from ours
Holders = Sequence[WeightHolder]  # modules that share a matrix


def place(holders: Holders, matrix: PackedMatrix) -> None:
    """They multiply by it from now on: where they were loaded before, in the memory of what they had, unless it is of
    another form."""
    weight = holders[0].weight.innermost
    if isinstance(weight, KernelWeight):
        weight.take(matrix)
        return
    weight = KernelWeight(matrix, weight.to_fill().dtype)
    for holder in holders:
        holder.use(weight)


class Packing(Protocol):
    device: torch.device  # where values may as well lie that are given

    def fill(self, holders: Holders, pieces: Sequence[Piece], source: WeightsSource) -> bool:
        """Gives them a matrix stacked of `pieces` in order; False = it is to be copied."""
        ...

    def give(self, holders: Holders, values: torch.Tensor) -> None:
        """Gives them these values [rows, cols]."""
        ...


class NoPacking:
    """Every matrix is a tensor."""

    device = torch.device("cpu")

    def fill(self, holders: Holders, pieces: Sequence[Piece], source: WeightsSource) -> bool:
        return False

    def give(self, holders: Holders, values: torch.Tensor) -> None:
        holders[0].weight.to_fill().copy_(values)


class MatrixPacking:
    """Every matrix is packed for the kernels that multiply it."""

    def __init__(self, packer: MatrixPacker) -> None:
        self._packer = packer
        self.device = packer.device

    def fill(self, holders: Holders, pieces: Sequence[Piece], source: WeightsSource) -> bool:
        inner, order = _inner(holders), self._order(holders, pieces, source)
        parts = []
        for name, rule in pieces:
            parts.append(self._part(name, rule, source, inner, order))
            source.release(name)
        self._place(holders, parts, order)
        return True

    def give(self, holders: Holders, values: torch.Tensor) -> None:
        self._place(holders, [self._packer.pack_values(values, _inner(holders))], None)

    def _order(self, holders: Holders, pieces: Sequence[Piece], source: WeightsSource) -> torch.Tensor | None:
        """In which all pieces have their columns; None where they are in order, differ, or are to be in order."""
        if not all(holder.takes_order for holder in holders):
            return None
        orders = [source.order(name) if self._keeps(rule) else None for name, rule in pieces]
        first = orders[0]
        same = first is not None and all(order is not None and torch.equal(order, first) for order in orders)
        return first if same else None

    def _keeps(self, rule: Rule) -> bool:
        """Whether blocks may stay as they are."""
        return (
            self._packer.keeps_blocks
            and not rule.add
            and not rule.is_scaled
            and not rule.kernel
            and rule.columns == (0, 1)
        )

    def _part(self, name: str, rule: Rule, source: WeightsSource, inner: bool, order: torch.Tensor | None) -> Any:
        """With its columns in this order."""
        whole = self._keeps(rule) and (order is not None or source.order(name) is None)
        part = self._as_stored(name, rule, source) if whole else None
        if part is not None:
            return part
        values = as_ours(source.load(name), rule)
        return self._packer.pack_values(values if order is None else values[:, order], inner)

    def _as_stored(self, name: str, rule: Rule, source: WeightsSource) -> Any | None:
        """None: no kernel multiplies it so."""
        if self._packer.takes_numbers and not rule.transpose:
            numbers = source.numbers(name)
            if numbers is not None:
                return self._packer.pack_numbers(numbers)
        found = source.blocks(name, rule.transpose)
        rows, cols = source.shape(name)[:: -1 if rule.transpose else 1]
        if found is None:
            return None
        part = self._packer.pack_blocks(*found, rows, cols)
        wider = wider_blocks(*found, rows, cols) if part is None else None
        return part if wider is None else self._packer.pack_blocks(*wider, rows, cols)

    def _place(self, holders: Holders, parts: Sequence[Any], order: torch.Tensor | None) -> None:
        place(holders, self._packer.stack(parts, order))


def _inner(holders: Holders) -> bool:
    return all(holder.inner for holder in holders)

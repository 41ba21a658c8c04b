"""Integers of a few bits with a scale, and maybe a zero point, for every group of columns."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

import torch

from cadence.kernels.interface.scaled_numbers import ScaledNumbers
from cadence.models.quant.blocks import integer_blocks
from cadence.models.quant.matrix import Blocks, StoredMatrix
from cadence.models.quant.tensors import ModuleTensors

SCALES = ("F16", "BF16", "F32")
_CHUNK = 1 << 22  # elements at once; bounds temporaries


@dataclass(frozen=True, slots=True)
class Integers:
    """W[r, c] = (quants[r, c] - zeros[r, g]) * scales[r, g] with g the group of column c."""

    quants: torch.Tensor  # [rows, cols] uint8
    zeros: torch.Tensor | int  # [rows, groups] integers, or one for all
    scales: torch.Tensor  # [rows, groups]
    group_of: torch.Tensor | None = None  # [cols] int64; None = groups are runs of one length


class IntegerMatrix(StoredMatrix):
    """A kind of checkpoint says where the integers are."""

    bits: int
    groups: int  # of columns

    @abstractmethod
    def integers(self) -> Integers: ...

    def group_of(self) -> torch.Tensor | None:
        """[cols]: the group of each column; None = groups are runs of one length."""
        return None

    def order(self) -> torch.Tensor | None:
        """Group by group, where all are of one length."""
        group_of = self.group_of()
        if group_of is None or (torch.bincount(group_of, minlength=self.groups) * self.groups != self.shape[1]).any():
            return None
        return torch.argsort(group_of, stable=True)

    def values(self) -> torch.Tensor:
        """In the type of the scales, each product rounded once."""
        found = self.integers()
        out = torch.empty(self.shape, dtype=found.scales.dtype)
        step = max(1, _CHUNK // self.shape[1])
        for start in range(0, self.shape[0], step):
            part = slice(start, start + step)
            zeros = found.zeros if isinstance(found.zeros, int) else found.zeros[part]
            one = Integers(found.quants[part], zeros, found.scales[part], found.group_of)
            out[part] = _values(one)
        return out

    def blocks(self) -> Blocks | None:
        found = self.numbers()
        return None if found is None else integer_blocks(found.numbers, self.bits, found.zeros, found.scales)

    def numbers(self) -> ScaledNumbers | None:
        found, order = self.integers(), self.order()
        if found.group_of is not None and order is None:
            return None
        quants = found.quants if order is None else found.quants[:, order]
        return ScaledNumbers(quants, found.scales, found.zeros, self.bits)


def _values(part: Integers) -> torch.Tensor:
    rows, cols = part.quants.shape
    kind = part.scales.dtype
    quants = part.quants.to(torch.int16)
    if part.group_of is None:
        runs = quants.view(rows, part.scales.shape[1], -1)
        zeros = part.zeros if isinstance(part.zeros, int) else part.zeros[..., None]
        return ((runs - zeros).to(kind) * part.scales[..., None]).view(rows, cols)
    zeros = part.zeros if isinstance(part.zeros, int) else part.zeros[:, part.group_of]
    return (quants - zeros).to(kind) * part.scales[:, part.group_of]


def num_groups(tensors: ModuleTensors, part: str, cols: int, group: int) -> int:
    """Of groups of so many columns, 0 = all; `part` is named where they do not come out even."""
    if group and cols % group:
        raise tensors.wrong(part, f"has {cols} columns, which groups of {group} do not share")
    return cols // group if group else 1


def column_groups(tensors: ModuleTensors, part: str, cols: int, groups: int) -> torch.Tensor | None:
    """The group of each column [cols], as stored in `part`; None where groups are runs, or it is not stored."""
    if part not in tensors:
        return None
    found = tensors.load(part).to(torch.int64)
    if (found == -1).all():  # as written where columns were not reordered
        return None
    if found.numel() and (int(found.min()) < 0 or int(found.max()) >= groups):
        raise tensors.wrong(part, f"names groups from {int(found.min())} to {int(found.max())}, of {groups}")
    runs = torch.arange(cols) // (cols // groups) if cols % groups == 0 else None
    return None if runs is not None and torch.equal(found, runs) else found

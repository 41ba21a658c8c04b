"""Packed weights: what they are made of, and how they are stacked."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import Structure
from dataclasses import dataclass
from enum import IntEnum

import torch

from cadence.core.errors import WeightsError
from cadence.kernels.cpu.runtime.table import TABLE

# What a packed weight is made of: `enum kind` of commands.h, which says what each is.
Kind = IntEnum(
    "Kind", {name.removeprefix("P_"): number for name, number in TABLE.enums["kind"].items()}, module=__name__
)


class Segment(Structure):
    """A packed weight as C sees it."""

    _fields_ = TABLE.fields("Segment")


@dataclass(frozen=True, slots=True)
class PackedWeight:
    """W [rows, cols], made by a `WeightPacking`, which alone writes `data`."""

    kind: Kind
    rows: int
    cols: int
    data: torch.Tensor  # [bytes] uint8, contiguous, on the CPU

    def segment(self) -> Segment:
        """Valid as long as this object is."""
        return Segment(self.data.data_ptr(), self.kind, self.rows, self.data.numel())


class PackedRows:
    """Weights of one input stacked, each in its own precision: [sum of rows, cols]."""

    def __init__(
        self,
        weights: Sequence[PackedWeight],
        row_dtype: torch.dtype = torch.float32,
        order: torch.Tensor | None = None,
    ) -> None:
        """row_dtype: of rows looked up one by one; order [cols]: column j of the weights is to meet column order[j] of
        x, which `PackedProducts` sees to"""
        if not weights:
            raise WeightsError("no packed weights to stack")
        self.weights = tuple(weights)
        self.row_dtype = row_dtype
        self.cols = weights[0].cols
        self.rows = sum(weight.rows for weight in weights)
        if any(weight.cols != self.cols for weight in weights):
            raise WeightsError(f"stacked weights differ in columns: {[weight.cols for weight in weights]}")
        if order is not None and (tuple(order.shape) != (self.cols,) or not _is_order(order)):
            raise WeightsError(f"the order of {self.cols} columns does not name each of them once")
        self.order = None if order is None else order.to(torch.int32).contiguous()
        self.places = None if order is None else torch.argsort(order).to(torch.int32)  # of the columns of the matrix
        self.segments = (Segment * len(weights))(*[weight.segment() for weight in weights])
        self.address = ctypes.addressof(self.segments)


def _is_order(order: torch.Tensor) -> bool:
    return torch.equal(torch.sort(order.long()).values, torch.arange(order.numel()))

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


class Kind(IntEnum):
    """What a packed weight is made of; the numbers are those of commands.h."""

    F32 = 0
    BF16 = 1
    Q8_0 = 2
    Q4_0 = 3
    Q4_1 = 4
    Q5_0 = 5
    Q5_1 = 6
    Q4_K = 7
    Q5_K = 8
    Q6_K = 9
    HALF = 10  # bfloat16 numbers, held as float16 times a power of two per row
    Q4_Z = 11  # as Q4_1 with a zero point, a whole number, instead of a shift
    Q8_F = 12  # as Q8_0 with scales in float32
    F16 = 13
    IQ4_NL = 14
    IQ4_XS = 15
    MXFP4 = 16
    T4_F = 17  # codes of 4 bits with their table, and scales in float32 per 16 columns
    F8 = 18  # float8 E4M3, with scales in float32 per row and up to 128 columns
    NF4 = 19  # codes of bitsandbytes' nf4, with scales in float32 per 64 columns
    FP4 = 20  # the same of its fp4
    Q2_K = 21
    Q8_Z = 22  # as Q8_0 with a zero point, a whole number


TABLE.check("kind", {f"P_{kind.name}": int(kind) for kind in Kind})


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

"""Products with packed weights as commands, which the device may record."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from cadence.device.calls import Calls
from cadence.kernels.cpu.packed.ops import PACKED_TYPES, PackedOps
from cadence.kernels.cpu.packed.weights import PackedRows
from cadence.kernels.cpu.runtime.library import CpuLibrary
from cadence.kernels.cpu.runtime.row_words import dense_rows, row_words
from cadence.kernels.interface.matrix import ComposedMatrix


class PackedProducts:
    def __init__(self, calls: Calls, library: CpuLibrary, isa: str = "auto") -> None:
        """isa: as PackedOps has it."""
        self._calls = calls
        self._c = library
        self.pool = calls.pool
        self._ops = PackedOps(library.functions, isa, calls.pool)
        self.isa = self._ops.isa
        self.isa_index = self._ops.index
        self.multiplies_halves = self._ops.multiplies_halves
        self.multiplies_float8 = self._ops.multiplies_float8

    def linear(
        self, x: torch.Tensor, weight: PackedRows, bias: torch.Tensor | None, dtype: torch.dtype | None = None
    ) -> torch.Tensor:
        """x [T, cols], bias [rows] float32 or None -> [T, rows] of `dtype`, x's where None. Types that the products do
        not take are widened before."""
        wanted = dtype or x.dtype
        x = dense_rows(x) if x.dtype in PACKED_TYPES else self._scaled(x, 1.0, torch.float32)
        x = x if weight.order is None else self._picked(x, weight.order)
        out = self._calls.empty((x.shape[0], weight.rows), wanted if wanted in PACKED_TYPES else torch.float32)
        self._c.packed_linear(**self._ops.words(out, x, weight, bias))
        return out if out.dtype is wanted else self._scaled(out, 1.0, wanted)

    def lookup(self, ids: torch.Tensor, weight: PackedRows, scale: float) -> torch.Tensor:
        """ids [T] int32 or int64 -> those rows of a weight of one part, times `scale`, [T, cols]."""
        found = weight.row_dtype if weight.row_dtype in PACKED_TYPES else torch.float32
        out = self._calls.empty((ids.shape[0], weight.cols), found)
        ids = ids.contiguous()
        self._c.packed_rows(**self._ops.row_words(out, ids, weight.weights[0]))
        out = out if weight.places is None else self._picked(out, weight.places)
        return out if scale == 1.0 and found is weight.row_dtype else self._scaled(out, scale, weight.row_dtype)

    def values(self, weight: PackedRows, first: int, count: int) -> torch.Tensor:
        """Rows [first, first + count) of the stack, [count, cols] float32."""
        found, start = [], 0
        for part in weight.weights:
            begin, end = max(first - start, 0), min(first + count - start, part.rows)
            if begin < end:
                found.append(self._ops.embed(torch.arange(begin, end), part))
            start += part.rows
        values = torch.cat(found)
        return values if weight.places is None else values[:, weight.places.long()]

    def _picked(self, x: torch.Tensor, order: torch.Tensor) -> torch.Tensor:
        """x [T, cols], order [cols] int32 -> columns order of x."""
        out = self._calls.empty(x.shape, x.dtype)
        self._c.pick_columns(**row_words(out, x), order=order, dtype=x.dtype)
        return out

    def converted(self, x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """x [T, H], rounded to `dtype`."""
        return self._scaled(x, 1.0, dtype)

    def _scaled(self, x: torch.Tensor, scale: float, dtype: torch.dtype) -> torch.Tensor:
        """x [T, H] * scale, rounded to `dtype`."""
        out = self._calls.empty(x.shape, dtype)
        self._c.scale(**row_words(out, x), factor=scale, dtype=x.dtype, out_dtype=dtype)
        return out


class CpuMatrix(ComposedMatrix):
    """A `PackedMatrix` of packed rows."""

    def __init__(self, products: PackedProducts, packed: PackedRows) -> None:
        self._products = products
        self.packed = packed
        self.rows, self.cols = packed.rows, packed.cols

    def held(self) -> Sequence[object]:
        return self.packed.weights, self.packed.row_dtype, self.packed.order, self.packed.places

    def linear(self, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        return self._products.linear(x, self.packed, bias)

    def logits(self, x: torch.Tensor) -> torch.Tensor:
        return self._products.linear(x, self.packed, None, torch.float32)

    def lookup(self, ids: torch.Tensor, scale: float) -> torch.Tensor:
        return self._products.lookup(ids, self.packed, scale)

    def values(self, first: int, count: int) -> torch.Tensor:
        return self._products.values(self.packed, first, count)

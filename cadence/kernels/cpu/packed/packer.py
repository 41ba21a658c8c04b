"""Matrices of a model in the form the CPU multiplies them in, made tensor by tensor while they load.

| method | a matrix becomes |
|---|---|
| none | what it is stored as: bfloat16, float16 or float32; with dtype bfloat16 all is rounded to that, and held \
as float16 where the CPU multiplies that faster |
| gguf, checkpoint, fp8 | the blocks of its files; types we have no kernel for go by `none`, dequantised |
| int8, int4 | blocks of 32 made of its values; what turns tokens into vectors and back, where errors show most, keeps \
8 bits |
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from cadence.kernels.cpu.packed.pack import BLOCK_TYPES, WeightPacking
from cadence.kernels.cpu.packed.products import CpuMatrix, PackedProducts
from cadence.kernels.cpu.packed.weights import PackedRows, PackedWeight
from cadence.kernels.interface.scaled_numbers import ScaledNumbers

_FLOAT8_BYTES = 36  # of a block
_FLOAT8_RUN = 4  # blocks that have one scale


class CpuPacker:
    """A `MatrixPacker`."""

    def __init__(self, products: PackedProducts, packing: WeightPacking, method: str, dtype: torch.dtype) -> None:
        """method: none | gguf | checkpoint | fp8 | int8 | int4; dtype: of activations."""
        self.device = torch.device("cpu")
        self.keeps_blocks = method in ("gguf", "checkpoint")
        self.takes_numbers = False  # they come in blocks
        self._products = products
        self._method = method
        self._dtype = dtype
        self._packing = packing
        self._quantize = {"int8": packing.int8, "int4": packing.int4}
        self._pack_narrow = packing.half if dtype is torch.bfloat16 and products.multiplies_halves else packing.bf16

    def pack_blocks(self, kind: str, blocks: torch.Tensor, rows: int, cols: int) -> PackedWeight | None:
        if kind not in BLOCK_TYPES or (kind == "F16" and not self._keeps_half(blocks.view(torch.float16))):
            return None
        if kind == "F8" and not self._keeps_float8(blocks, rows):
            return None
        with self._products.pool:
            return self._packing.gguf(kind, blocks, rows, cols)

    def pack_numbers(self, stored: ScaledNumbers) -> None:
        return None

    def pack_values(self, values: torch.Tensor, inner: bool) -> PackedWeight:
        with self._products.pool:
            return self._pack_for(values, inner)(values)

    def _pack_for(self, values: torch.Tensor, inner: bool) -> Callable[[torch.Tensor], PackedWeight]:
        if self._method in self._quantize:
            return self._quantize[self._method] if inner else self._packing.int8
        if torch.bfloat16 in (values.dtype, self._dtype):
            return self._pack_narrow
        return self._packing.f16 if self._keeps_half(values) else self._packing.f32

    def _keeps_half(self, values: torch.Tensor) -> bool:
        """Whether float16 stays what it is; kernels take all of it for finite."""
        is_half = values.dtype is torch.float16 and self._dtype is not torch.bfloat16
        return is_half and bool(values.isfinite().all())

    def _keeps_float8(self, blocks: torch.Tensor, rows: int) -> bool:
        """Whether float8 stays what it is; kernels take all of it for numbers, and runs of columns for such of one
        scale."""
        if not self._products.multiplies_float8(self._dtype):
            return False
        by_row = blocks.view(rows, -1, _FLOAT8_BYTES)
        scales = by_row[..., :4].contiguous().view(torch.float32).view(rows, -1)
        first = scales[:, ::_FLOAT8_RUN].repeat_interleave(_FLOAT8_RUN, dim=1)[:, : scales.shape[1]]
        numbers = (by_row[..., 4:] & 127).amax() < 127
        return bool(numbers) and torch.equal(first, scales) and bool((scales * 256.0).isfinite().all())

    def stack(self, parts: Sequence[PackedWeight], order: torch.Tensor | None = None) -> CpuMatrix:
        return CpuMatrix(self._products, PackedRows(parts, self._dtype, order))

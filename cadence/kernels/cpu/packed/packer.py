"""Matrices of a model in the form the CPU multiplies them in, made tensor by tensor while they load.

| method | a matrix becomes |
|---|---|
| none | what it is stored as: bfloat16 stays so, all else is float32 (float16 has no exact smaller home here); with \
dtype bfloat16 everything is rounded to that, and held as float16 where the CPU multiplies that faster |
| gguf | the file's own blocks; types we have no kernel for go by `none`, dequantised |
| int8, int4 | blocks of 32 made of its values; what turns tokens into vectors and back, where errors show most, keeps \
8 bits |
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from cadence.kernels.cpu.packed.ops import multiplies_halves
from cadence.kernels.cpu.packed.pack import (
    GGUF_TYPES,
    pack_bf16,
    pack_f32,
    pack_gguf,
    pack_half,
    pack_int4,
    pack_int8,
)
from cadence.kernels.cpu.packed.products import CpuMatrix, PackedProducts
from cadence.kernels.cpu.packed.weights import PackedRows, PackedWeight
from cadence.kernels.cpu.runtime.memory import Memory, PackedMemory

_QUANTIZE: dict[str, Callable[[torch.Tensor, Memory], PackedWeight]] = {"int8": pack_int8, "int4": pack_int4}


class CpuPacker:
    """A `MatrixPacker`."""

    def __init__(self, products: PackedProducts, method: str, dtype: torch.dtype) -> None:
        """method: none | gguf | int8 | int4; dtype: of activations."""
        self.keeps_blocks = method == "gguf"
        self._products = products
        self._method = method
        self._dtype = dtype
        self._pack_narrow = pack_half if dtype is torch.bfloat16 and multiplies_halves(products.isa) else pack_bf16
        self._memory = PackedMemory()

    def pack_blocks(self, kind: str, blocks: torch.Tensor, rows: int, cols: int) -> PackedWeight | None:
        if kind not in GGUF_TYPES:
            return None
        with self._products.pool:
            return pack_gguf(kind, blocks, rows, cols, self._memory)

    def pack_values(self, values: torch.Tensor, inner: bool) -> PackedWeight:
        with self._products.pool:
            return self._pack_for(values, inner)(values, self._memory)

    def _pack_for(self, values: torch.Tensor, inner: bool) -> Callable[[torch.Tensor, Memory], PackedWeight]:
        if self._method in _QUANTIZE:
            return _QUANTIZE[self._method] if inner else pack_int8
        return self._pack_narrow if torch.bfloat16 in (values.dtype, self._dtype) else pack_f32

    def stack(self, parts: Sequence[PackedWeight]) -> CpuMatrix:
        return CpuMatrix(self._products, PackedRows(parts, self._dtype))

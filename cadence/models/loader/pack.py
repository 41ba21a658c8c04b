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
from torch import nn

from cadence.kernels.cpu.packed import (
    GGUF_TYPES,
    PackedRows,
    PackedWeight,
    multiplies_halves,
    pack_bf16,
    pack_f32,
    pack_gguf,
    pack_half,
    pack_int4,
    pack_int8,
)
from cadence.kernels.cpu.runtime.memory import Memory, PackedMemory
from cadence.models.layers.embedding import Embedding, LMHead
from cadence.models.layers.linear import Linear
from cadence.models.loader.packing import Piece
from cadence.models.loader.source import WeightsSource

_QUANTIZE: dict[str, Callable[[torch.Tensor, Memory], PackedWeight]] = {"int8": pack_int8, "int4": pack_int4}


class CpuPacking:
    def __init__(self, method: str, dtype: torch.dtype, isa: str = "auto") -> None:
        """method: none | gguf | int8 | int4; dtype: of activations; isa: as PackedOps has it."""
        self._method = method
        self._dtype = dtype
        self._pack_narrow = pack_half if dtype is torch.bfloat16 and multiplies_halves(isa) else pack_bf16
        self._memory = PackedMemory()

    def fill(self, modules: Sequence[nn.Module], pieces: Sequence[Piece], source: WeightsSource) -> bool:
        if not all(isinstance(module, Linear | Embedding | LMHead) for module in modules):
            return False
        weights = []
        for piece in pieces:
            weights.append(self._packed(modules, piece, source))
            source.release(piece[0])
        self._place(modules, weights)
        return True

    def give(self, modules: Sequence[nn.Module], values: torch.Tensor) -> None:
        self._place(modules, [self._of_values(modules, values)])

    def _packed(self, modules: Sequence[nn.Module], piece: Piece, source: WeightsSource) -> PackedWeight:
        name, rule = piece
        found = source.blocks(name, rule.transpose) if self._method == "gguf" and not rule.add else None
        if found is not None and found[0] in GGUF_TYPES:
            rows, cols = source.shape(name)[:: -1 if rule.transpose else 1]
            return pack_gguf(*found, rows, cols, self._memory)
        values = source.load(name)
        values = values.float() + rule.add if rule.add else values
        return self._of_values(modules, values.T if rule.transpose else values)

    def _of_values(self, modules: Sequence[nn.Module], values: torch.Tensor) -> PackedWeight:
        if self._method in _QUANTIZE:
            inner = all(isinstance(module, Linear) for module in modules)
            return (_QUANTIZE[self._method] if inner else pack_int8)(values, self._memory)
        narrow = torch.bfloat16 in (values.dtype, self._dtype)
        return (self._pack_narrow if narrow else pack_f32)(values, self._memory)

    def _place(self, modules: Sequence[nn.Module], weights: Sequence[PackedWeight]) -> None:
        packed = PackedRows(weights, self._dtype)
        for module in modules:
            del module.weight  # a parameter that was never more than its shape
            module.weight = packed  # type: ignore[assignment]

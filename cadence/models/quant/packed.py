"""compressed-tensors, pack-quantized: integers along columns in int32 words, rows as they are.

  weight_packed      int32 [rows, words]
  weight_scale       [rows, groups]
  weight_zero_point  int32 [words of rows, groups], packed along rows, or int8 [rows, groups]; not where symmetric
  weight_g_idx       int32 [cols]: the group of each column, where they were ordered by activation
  weight_shape       int64 [2]: rows, cols

Quants and zero points are stored with half their range added: unsigned.
"""

from __future__ import annotations

import torch

from cadence.config.files.stored_as import StoredAs
from cadence.models.quant.integers import SCALES, IntegerMatrix, Integers, column_groups, num_groups
from cadence.models.quant.tensors import ModuleTensors
from cadence.models.quant.words import num_words, unpacked


class PackedIntegers(IntegerMatrix):
    def __init__(self, tensors: ModuleTensors, stored: StoredAs) -> None:
        self._tensors = tensors
        self.bits = stored.bits
        rows, words = tensors.matrix_shape("weight_packed", ("I32",))
        tensors.check("weight_shape", ("I64", "I32"), (2,))
        said = tuple(int(size) for size in tensors.load("weight_shape"))
        if said[0] != rows or said[1] < 1 or said[1] > 32 * words or num_words(said[1], self.bits) != words:
            held = f"{rows} rows of {words} words of {32 // self.bits}"
            raise tensors.wrong("weight_shape", f"says {list(said)}, but weight_packed holds {held}")
        self.shape = rows, said[1]
        self.groups = num_groups(tensors, "weight_packed", said[1], stored.group)
        shapes = [(rows, self.groups)] + ([(rows,)] if self.groups == 1 else [])
        tensors.check("weight_scale", SCALES, *shapes, *([(1,), ()] if stored.per_tensor else []))
        self._has_zeros = not stored.symmetric
        if self._has_zeros and tensors.stored_type("weight_zero_point") == "I32":
            tensors.check("weight_zero_point", ("I32",), (num_words(rows, self.bits), self.groups))
        elif self._has_zeros:
            tensors.check("weight_zero_point", ("I8",), *shapes)
        if "weight_g_idx" in tensors:
            tensors.check("weight_g_idx", ("I32", "I64"), (said[1],))

    def group_of(self) -> torch.Tensor | None:
        return column_groups(self._tensors, "weight_g_idx", self.shape[1], self.groups)

    def integers(self) -> Integers:
        rows, cols = self.shape
        group_of = self.group_of()
        scales = self._tensors.finite("weight_scale").reshape(-1, self.groups).expand(rows, -1)
        quants = unpacked(self._tensors.load("weight_packed"), self.bits)[:, :cols]
        return Integers(quants, self._zeros(), scales, group_of)

    def _zeros(self) -> torch.Tensor | int:
        middle = 1 << (self.bits - 1)
        if not self._has_zeros:
            return middle
        found = self._tensors.load("weight_zero_point")
        if found.dtype is torch.int8:
            return found.reshape(self.shape[0], self.groups).to(torch.int16) + middle
        return unpacked(found.t(), self.bits)[:, : self.shape[0]].t().to(torch.int16)

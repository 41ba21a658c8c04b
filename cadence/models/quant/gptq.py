"""GPTQ: integers along columns in int32 words, transposed.

qweight  int32 [words of cols, rows]
qzeros   int32 [groups, words of rows], in the first version of the format one less than they are
scales   [groups, rows]
g_idx    int32 [cols]: the group of each column; it may be missing where they are runs
"""

from __future__ import annotations

import torch

from cadence.config.files.stored_as import StoredAs
from cadence.models.quant.integers import SCALES, IntegerMatrix, Integers, column_groups
from cadence.models.quant.tensors import ModuleTensors
from cadence.models.quant.words import unpacked


class GPTQMatrix(IntegerMatrix):
    def __init__(self, tensors: ModuleTensors, stored: StoredAs) -> None:
        self._tensors = tensors
        self.bits = stored.bits
        self._zero_offset = stored.zero_offset
        in_word = 32 // self.bits
        words, rows = tensors.matrix_shape("qweight", ("I32",))
        cols = words * in_word
        self.shape = rows, cols
        self.groups = -(-cols // stored.group) if stored.group else 1
        if rows % in_word:
            raise tensors.wrong("qweight", f"has {rows} rows, which words of {in_word} zero points do not fit")
        tensors.check("scales", SCALES, (self.groups, rows))
        tensors.check("qzeros", ("I32",), (self.groups, rows // in_word))
        if "g_idx" in tensors:
            tensors.check("g_idx", ("I32", "I64"), (cols,))
        elif cols % self.groups:
            raise tensors.wrong("qweight", f"has {cols} columns, which {self.groups} groups do not share")

    def group_of(self) -> torch.Tensor | None:
        return column_groups(self._tensors, "g_idx", self.shape[1], self.groups)

    def integers(self) -> Integers:
        rows, cols = self.shape
        group_of = self.group_of()
        scales = self._tensors.finite("scales").t().contiguous()
        words = self._tensors.load("qweight")[..., None]  # [words, rows, 1]
        quants = unpacked(words, self.bits).permute(1, 0, 2).reshape(rows, cols)
        zeros = unpacked(self._tensors.load("qzeros"), self.bits).t().to(torch.int16) + self._zero_offset
        return Integers(quants, (zeros & ((1 << self.bits) - 1)).contiguous(), scales, group_of)

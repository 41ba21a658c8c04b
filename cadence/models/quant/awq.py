"""AWQ (version gemm): eight rows in an int32 word, even ones before odd ones, transposed.

qweight  int32 [cols, rows / 8]
qzeros   int32 [groups, rows / 8]; not where there are no zero points
scales   [groups, rows]
"""

from __future__ import annotations

import torch

from cadence.config.files.stored_as import StoredAs
from cadence.models.quant.integers import SCALES, IntegerMatrix, Integers, num_groups
from cadence.models.quant.tensors import ModuleTensors
from cadence.models.quant.words import unpacked

_IN_WORD = 8
_PLACE_OF_ROW = (0, 4, 1, 5, 2, 6, 3, 7)  # in its word


class AWQMatrix(IntegerMatrix):
    def __init__(self, tensors: ModuleTensors, stored: StoredAs) -> None:
        self._tensors = tensors
        self.bits = stored.bits
        cols, words = tensors.matrix_shape("qweight", ("I32",))
        self.shape = words * _IN_WORD, cols
        self.groups = num_groups(tensors, "qweight", cols, stored.group)
        tensors.check("scales", SCALES, (self.groups, self.shape[0]))
        self._has_zeros = not stored.symmetric or "qzeros" in tensors
        if self._has_zeros:
            tensors.check("qzeros", ("I32",), (self.groups, words))

    def integers(self) -> Integers:
        zeros: torch.Tensor | int = 1 << (self.bits - 1)
        if self._has_zeros:
            zeros = _rows(self._tensors.load("qzeros")).to(torch.int16)
        scales = self._tensors.finite("scales").t().contiguous()
        return Integers(_rows(self._tensors.load("qweight")), zeros, scales)


def _rows(words: torch.Tensor) -> torch.Tensor:
    """words [n, rows / 8] -> [rows, n] uint8"""
    in_places = unpacked(words, 4).view(*words.shape, _IN_WORD)
    return in_places[..., _PLACE_OF_ROW].flatten(1).t().contiguous()

"""Numbers of four bits (E2M1), two a byte, the first in the low half.

compressed-tensors NVFP4:
  weight_packed        uint8 [rows, cols / 2]
  weight_scale         float8 [rows, cols / 16]
  weight_global_scale  float32 [1]: what the scales of groups are divided by
compressed-tensors MXFP4:
  weight_packed        uint8 [rows, cols / 2]
  weight_scale         uint8 [rows, cols / 32]: powers of two, from 2^-127 on
"""

from __future__ import annotations

from abc import abstractmethod

import torch

from cadence.config.files.stored_as import StoredAs
from cadence.kernels.interface.scaled_numbers import ScaledNumbers
from cadence.models.quant.blocks import code_blocks, power_blocks
from cadence.models.quant.matrix import Blocks, StoredMatrix
from cadence.models.quant.tensors import ModuleTensors
from cadence.models.quant.words import unpacked

NV_GROUP, MX_GROUP = 16, 32
NOT_A_NUMBER = 255  # among powers of two
_TWICE = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)  # what a code stands for, times two
_CHUNK = 1 << 22  # elements at once; bounds temporaries


class FP4Matrix(StoredMatrix):
    """Of either kind. The values are bfloat16, as the format's own library has them."""

    group: int

    def __init__(self, tensors: ModuleTensors, group: int, scale_types: tuple[str, ...]) -> None:
        self._tensors = tensors
        self.group = group
        rows, half = tensors.matrix_shape("weight_packed", ("U8",))
        self.shape = rows, 2 * half
        if self.shape[1] % group:
            raise tensors.wrong("weight_packed", f"has {2 * half} columns, which groups of {group} do not share")
        tensors.check("weight_scale", scale_types, (rows, self.shape[1] // group))

    @abstractmethod
    def scales(self) -> torch.Tensor:
        """[rows, groups] float32"""

    def numbers(self) -> ScaledNumbers:
        codes = unpacked(self._tensors.load("weight_packed"), 4)
        return ScaledNumbers(codes, self.scales(), bits=4, is_fp4=True)

    def values(self) -> torch.Tensor:
        scales, packed = self.scales(), self._tensors.load("weight_packed")
        out = torch.empty(self.shape, dtype=torch.bfloat16)
        step = max(1, _CHUNK // self.shape[1])
        for start in range(0, self.shape[0], step):
            codes = unpacked(packed[start : start + step], 4)
            out[start : start + step] = fp4_values(codes, scales[start : start + step], self.group)
        return out


class NVFP4Matrix(FP4Matrix):
    def __init__(self, tensors: ModuleTensors, stored: StoredAs) -> None:
        super().__init__(tensors, stored.group or NV_GROUP, ("F8_E4M3",))
        tensors.check("weight_global_scale", ("F32",), (1,), ())

    def scales(self) -> torch.Tensor:
        whole = self._tensors.finite("weight_global_scale").reshape(1)
        if float(whole) == 0.0:
            raise self._tensors.wrong("weight_global_scale", "is zero, and scales are divided by it")
        return self._tensors.finite("weight_scale").to(torch.float32) / whole

    def blocks(self) -> Blocks | None:
        """None too where scales are so small that half of one is another number."""
        scales = self.scales()
        half = scales / 2
        if not torch.equal(half * 2, scales):
            return None
        return code_blocks(unpacked(self._tensors.load("weight_packed"), 4), _TWICE, half)


class MXFP4Matrix(FP4Matrix):
    def __init__(self, tensors: ModuleTensors, stored: StoredAs) -> None:
        super().__init__(tensors, stored.group or MX_GROUP, ("U8",))

    def scales(self) -> torch.Tensor:
        found = self._tensors.load("weight_scale")
        if (found == NOT_A_NUMBER).any():
            raise self._tensors.wrong("weight_scale", "holds scales that are not finite")
        return power_of_two(found)

    def blocks(self) -> Blocks | None:
        self.scales()  # all of them numbers
        return power_blocks(unpacked(self._tensors.load("weight_packed"), 4), self._tensors.load("weight_scale"))


def fp4_values(codes: torch.Tensor, scales: torch.Tensor, group: int) -> torch.Tensor:
    """codes [rows, cols] uint8, scales [rows, cols / group] float32 -> [rows, cols] bfloat16"""
    numbers = torch.tensor(_TWICE, dtype=torch.float32)[codes.int()] / 2
    numbers = torch.where(codes == 8, -0.0, numbers)
    return (numbers.view(*scales.shape, group) * scales[..., None]).view(codes.shape).to(torch.bfloat16)


def power_of_two(exponents: torch.Tensor) -> torch.Tensor:
    """uint8 -> 2^(that - 127), float32"""
    bits = exponents.to(torch.int32) << 23
    return torch.where(exponents == 0, 2.0**-127, bits.view(torch.float32))

"""Experts of GPT-OSS: matrices of E2M1 numbers in blocks of 32, one tensor for all experts.

NAME_blocks  uint8 [experts, rows, blocks, 16]: two numbers a byte, the first in the low half
NAME_scales  uint8 [experts, rows, blocks]: powers of two, from 2^-127 on
"""

from __future__ import annotations

import torch

from cadence.models.quant.fp4 import MX_GROUP, NOT_A_NUMBER, fp4_values, power_of_two
from cadence.models.quant.tensors import ModuleTensors
from cadence.models.quant.words import unpacked


class ExpertMatrices:
    """W [experts, rows, cols]."""

    def __init__(self, tensors: ModuleTensors, name: str) -> None:
        """name: of the matrices, as "gate_up_proj"."""
        self._tensors = tensors
        self._blocks, self._scales = f"{name}_blocks", f"{name}_scales"
        tensors.check(self._blocks, ("U8",))
        shape = tensors.shape(self._blocks)
        if len(shape) != 4 or min(shape) < 1 or shape[3] * 2 != MX_GROUP:
            raise tensors.wrong(self._blocks, f"has shape {list(shape)}, where [experts, rows, blocks, 16] is expected")
        tensors.check(self._scales, ("U8",), shape[:3])
        self.shape = shape[0], shape[1], shape[2] * MX_GROUP

    def expert(self, index: int) -> torch.Tensor:
        """[rows, cols] bfloat16, of one."""
        exponents = self._tensors.load(self._scales)[index]
        if (exponents == NOT_A_NUMBER).any():
            raise self._tensors.wrong(self._scales, "holds scales that are not finite")
        codes = unpacked(self._tensors.load(self._blocks)[index].flatten(1), 4)
        return fp4_values(codes, power_of_two(exponents), MX_GROUP)

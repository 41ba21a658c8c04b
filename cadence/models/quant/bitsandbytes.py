"""bitsandbytes: indices of four bits into a table, or bytes with the largest of each row.

4 bits, all tensors named after the weight itself:
  weight                   two indices a byte, the first in the high half; [bytes, 1], of any type
  weight.absmax            of every block of values: float32, or uint8 where they are quantised once more
  weight.quant_map         float32 [16]
  weight.nested_absmax     float32, of every block of absmax
  weight.nested_quant_map  float32 [256]
  weight.quant_state.*     JSON as uint8: shape, type, sizes of blocks, what was subtracted from absmax
8 bits:
  weight                   int8 [rows, cols]
  SCB                      float32 [rows]: the largest of each row
"""

from __future__ import annotations

import json
import math
from typing import Any

import torch

from cadence.config.files.stored_as import StoredAs
from cadence.kernels.interface.scaled_numbers import ScaledNumbers
from cadence.models.quant.blocks import signed_blocks, table_blocks
from cadence.models.quant.matrix import Blocks, StoredMatrix
from cadence.models.quant.tensors import ModuleTensors
from cadence.models.quant.words import unpacked

STATE = "weight.quant_state.bitsandbytes__"  # then nf4 or fp4
_DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
_STORAGE = ("U8", "I8", "BF16", "F16", "F32")
_MOST_STATE = 4096  # bytes
_MOST_SIZE = 1 << 24
_LEAST_RUN = 32  # columns that have one scale, where kernels are to have them
_PER_127 = 7.874015718698502e-3  # as the format's own library has it


class TableMatrix(StoredMatrix):
    """4 bits."""

    def __init__(self, tensors: ModuleTensors, stored: StoredAs) -> None:
        self._tensors = tensors
        self._part = next((STATE + kind for kind in ("nf4", "fp4") if STATE + kind in tensors), STATE + "nf4")
        state = self._state()
        self.shape = self._sizes(state)
        self._dtype = _DTYPES.get(str(state.get("dtype")), torch.bfloat16)
        self._block, count = self._size(state, "blocksize"), math.prod(self.shape)
        tensors.check("weight", _STORAGE)
        self._nested = "weight.nested_absmax" in tensors
        num_blocks = -(-count // self._block)
        tensors.check("weight.quant_map", ("F32",), (16,))
        tensors.check("weight.absmax", ("U8",) if self._nested else ("F32",), (num_blocks,))
        if tensors.load("weight").nbytes * 2 != count + count % 2:
            raise tensors.wrong(
                "weight", f"is {tensors.load('weight').nbytes} bytes, which {list(self.shape)} does not fill"
            )
        if self._nested:
            self._offset = self._number(state, "nested_offset")
            self._nested_block = self._size(state, "nested_blocksize")
            tensors.check("weight.nested_quant_map", ("F32",), (256,))
            tensors.check("weight.nested_absmax", ("F32",), (-(-num_blocks // self._nested_block),))

    def values(self) -> torch.Tensor:
        """Of each block: the table's numbers times its largest, in float32, then rounded."""
        count = math.prod(self.shape)
        table = self._tensors.finite("weight.quant_map")
        found = table[self._codes().int()]
        largest = self._largest().repeat_interleave(min(self._block, count))[:count]
        return found.mul_(largest).view(self.shape).to(self._dtype)

    def blocks(self) -> Blocks | None:
        """Of numbers that are off by up to 2^-15.9 of the largest of their block."""
        found = self.numbers()
        return None if found is None or found.table is None else table_blocks(found.numbers, found.table, found.scales)

    def numbers(self) -> ScaledNumbers | None:
        """With scales for runs of columns that are of one block: blocks go on from row to row."""
        rows, cols = self.shape
        run = math.gcd(self._block, cols)
        if run < _LEAST_RUN:
            return None
        scales = self._largest()[torch.arange(0, rows * cols, run) // self._block].view(rows, -1)
        table = self._tensors.finite("weight.quant_map")
        return ScaledNumbers(self._codes().view(self.shape), scales, bits=4, table=table)

    def _codes(self) -> torch.Tensor:
        """[rows * cols] uint8"""
        halves = unpacked(self._tensors.load("weight").reshape(-1), 4).view(-1, 2)
        return halves.flip(1).reshape(-1)[: math.prod(self.shape)]

    def _largest(self) -> torch.Tensor:
        if not self._nested:
            return self._tensors.finite("weight.absmax")
        table = self._tensors.finite("weight.nested_quant_map")
        found = table[self._tensors.load("weight.absmax").int()]
        each = min(self._nested_block, found.shape[0])
        scale = self._tensors.finite("weight.nested_absmax").repeat_interleave(each)[: found.shape[0]]
        return found * scale + self._offset

    def _state(self) -> dict[str, Any]:
        self._tensors.check(self._part, ("U8",))
        shape = self._tensors.shape(self._part)
        try:
            if len(shape) != 1 or shape[0] > _MOST_STATE:
                raise ValueError
            found = json.loads(bytes(self._tensors.load(self._part).tolist()))
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            raise self._tensors.wrong(self._part, "is no JSON object of a few entries")
        return found

    def _sizes(self, state: dict[str, Any]) -> tuple[int, int]:
        found = state.get("shape")
        right = isinstance(found, list) and len(found) == 2 and all(_is_size(size) for size in found)
        if not right or found is None:
            raise self._tensors.wrong(self._part, "does not say the two sizes of a matrix")
        return found[0], found[1]

    def _size(self, state: dict[str, Any], name: str) -> int:
        found = state.get(name)
        if found is None or not _is_size(found):
            raise self._tensors.wrong(self._part, f"has no size for {name!r}")
        return int(found)

    def _number(self, state: dict[str, Any], name: str) -> float:
        found = state.get(name)
        if not isinstance(found, int | float) or not math.isfinite(found):
            raise self._tensors.wrong(self._part, f"has no number for {name!r}")
        return float(found)


class RowScaledMatrix(StoredMatrix):
    """8 bits."""

    def __init__(self, tensors: ModuleTensors, stored: StoredAs) -> None:
        self._tensors = tensors
        self.shape = tensors.matrix_shape("weight", ("I8",))
        tensors.check("SCB", ("F32",), (self.shape[0],))

    def values(self) -> torch.Tensor:
        """float32, each of two products rounded."""
        largest = self._tensors.finite("SCB")
        return (self._tensors.load("weight") * largest[:, None]).mul_(_PER_127)

    def blocks(self) -> Blocks | None:
        """Of numbers with one product rounded."""
        found = self.numbers()
        return signed_blocks(found.numbers, found.scales)

    def numbers(self) -> ScaledNumbers:
        return ScaledNumbers(self._tensors.load("weight"), (self._tensors.finite("SCB") * _PER_127)[:, None])


def _is_size(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= _MOST_SIZE

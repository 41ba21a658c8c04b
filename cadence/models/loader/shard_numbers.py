"""Scaled numbers of a quantised checkpoint in the files of a rank, and back.

Beside NAME, the numbers (two of four bits in a byte, the first in the low half), lie NAME.scales and, where it has
them, NAME.zeros, NAME.table (of codes), NAME.order (of columns) and NAME.blocks, the form that other kernels take.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

import torch

from cadence.config.files.sharded_state import StoredNumbers
from cadence.core.errors import WeightsError
from cadence.kernels.interface.scaled_numbers import ScaledNumbers
from cadence.models.loader.source import WeightsSource
from cadence.models.quant.block_kinds import num_block_bytes
from cadence.models.quant.scaled_values import values_of_numbers
from cadence.models.quant.words import unpacked

SCALES, ZEROS, TABLE, ORDER, BLOCKS = ".scales", ".zeros", ".table", ".order", ".blocks"
_PARTS = ("", SCALES, ZEROS, TABLE, ORDER, BLOCKS)
_CODES = 16  # entries of a table
_DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
_NUMBERS = (torch.uint8, torch.int8, torch.float8_e4m3fn)


class TensorsByName(Protocol):
    def __contains__(self, name: object) -> bool: ...

    def __getitem__(self, name: str) -> torch.Tensor: ...


class ShardNumbers:
    """One matrix [rows, cols] of a rank's files."""

    def __init__(self, name: str, form: StoredNumbers, tensors: TensorsByName) -> None:
        """Raises where its tensors do not fit together."""
        self._name, self._form, self._tensors = name, form, tensors
        numbers, scales = self._tensor(""), self._tensor(SCALES)
        if numbers.dim() != 2 or scales.dim() != 2 or numbers.dtype not in _NUMBERS or form.dtype not in _DTYPES:
            raise self._wrong("it is not a matrix of numbers with scales")
        rows, width = numbers.shape
        cols, groups = width * (2 if form.is_packed else 1), scales.shape[1]
        if scales.shape[0] != rows or not groups or cols % groups or scales.dtype not in _DTYPES.values():
            raise self._wrong(f"{rows} x {cols} numbers, but scales of {tuple(scales.shape)}")
        if form.zero is None and self._tensor(ZEROS).shape != scales.shape:
            raise self._wrong(f"its zeros are not {tuple(scales.shape)}")
        if form.has_table and (self._tensor(TABLE).shape != (_CODES,) or not form.is_packed):
            raise self._wrong(f"its table is not one of {_CODES} numbers, or its numbers are no codes")
        if form.has_order and self._tensor(ORDER).shape != (cols,):
            raise self._wrong(f"its order is not one of {cols} columns")
        self.shape = rows, cols
        if form.kind and self._tensor(BLOCKS).nbytes != (num_block_bytes(form.kind, self.shape) or -1):
            raise self._wrong(f"its blocks are not those of {rows} x {cols} {form.kind}")

    def numbers(self) -> ScaledNumbers:
        form, stored, scales = self._form, self._tensor(""), self._tensor(SCALES)
        if not torch.isfinite(scales).all():
            raise self._wrong("it holds scales that are not finite")
        zeros = form.zero if form.zero is not None else self._tensor(ZEROS).to(torch.int16)
        table = self._tensor(TABLE).float() if form.has_table else None
        codes = unpacked(stored, 4) if form.is_packed else stored
        return ScaledNumbers(codes, scales, zeros, form.bits, form.is_fp4, table)

    def values(self) -> torch.Tensor:
        ordered = values_of_numbers(self.numbers()).to(_DTYPES[self._form.dtype])
        order = self.order()
        if order is None:
            return ordered
        values = torch.empty_like(ordered)
        values[:, order] = ordered
        return values

    def blocks(self) -> tuple[str, torch.Tensor] | None:
        return (self._form.kind, self._tensor(BLOCKS)) if self._form.kind else None

    def order(self) -> torch.Tensor | None:
        if not self._form.has_order:
            return None
        order = self._tensor(ORDER).to(torch.int64)
        if not torch.equal(order.sort().values, torch.arange(len(order))):
            raise self._wrong("its order does not name every column once")
        return order

    def parts(self) -> list[str]:
        """The tensors that it lies in."""
        return [self._name + part for part in _PARTS if self._name + part in self._tensors]

    def _tensor(self, part: str) -> torch.Tensor:
        if self._name + part not in self._tensors:
            raise self._wrong(f"there is no tensor {self._name + part!r}")
        return self._tensors[self._name + part]

    def _wrong(self, what: str) -> WeightsError:
        return WeightsError(f"sharded state: {self._name!r}: {what}")


def numbers_of(source: WeightsSource, name: str) -> tuple[StoredNumbers, dict[str, torch.Tensor]] | None:
    """How a matrix is stored as numbers, and the tensors of that; None where it has none, or they do not give back
    its values bit for bit."""
    found = source.numbers(name) if len(source.shape(name)) == 2 else None
    if found is None:
        return None
    values, order, blocks = source.load(name), source.order(name), source.blocks(name, False)
    packed = found.bits <= 4 and found.numbers.dtype is torch.uint8 and found.numbers.shape[1] % 2 == 0
    zero = found.zeros if isinstance(found.zeros, int) else None
    kind = "" if blocks is None else blocks[0]
    dtype = str(values.dtype).removeprefix("torch.")
    form = StoredNumbers(
        found.bits, found.is_fp4, zero, packed, order is not None, kind, dtype, found.table is not None
    )
    tensors = {name: _packed(found.numbers) if packed else found.numbers, name + SCALES: found.scales}
    if isinstance(found.zeros, torch.Tensor):
        tensors[name + ZEROS] = found.zeros.to(torch.int32)
    if found.table is not None:
        tensors[name + TABLE] = found.table
    if order is not None:
        tensors[name + ORDER] = order.to(torch.int64)
    if blocks is not None:
        tensors[name + BLOCKS] = blocks[1]
    try:
        same = torch.equal(ShardNumbers(name, replace(form, kind=""), tensors).values(), values)
    except WeightsError:
        return None
    return (form, tensors) if same else None


def _packed(codes: torch.Tensor) -> torch.Tensor:
    """[rows, cols] of four bits -> [rows, cols / 2]"""
    return codes[:, ::2] | (codes[:, 1::2] << 4)

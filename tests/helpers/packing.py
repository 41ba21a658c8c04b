"""Weights packed and multiplied by hand. The tests of a process share one library."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from ctypes import CDLL, Structure, byref

import torch

from cadence.device.pool import NoPool, Pool
from cadence.kernels.cpu.packed import ops
from cadence.kernels.cpu.packed.ops import PACKED_TYPES, PackedOps
from cadence.kernels.cpu.packed.pack import WeightPacking
from cadence.kernels.cpu.packed.weights import PackedRows, PackedWeight
from cadence.kernels.cpu.runtime.library import open_library, with_words
from cadence.kernels.cpu.runtime.table import TABLE


@functools.cache
def functions() -> CDLL:
    return open_library()


def packing() -> WeightPacking:
    return WeightPacking(functions())


def pack_f32(tensor: torch.Tensor) -> PackedWeight:
    return packing().f32(tensor)


def pack_bf16(tensor: torch.Tensor) -> PackedWeight:
    return packing().bf16(tensor)


def pack_f16(tensor: torch.Tensor) -> PackedWeight:
    return packing().f16(tensor)


def pack_half(tensor: torch.Tensor) -> PackedWeight:
    return packing().half(tensor)


def pack_int8(tensor: torch.Tensor) -> PackedWeight:
    return packing().int8(tensor)


def pack_int4(tensor: torch.Tensor) -> PackedWeight:
    return packing().int4(tensor)


def pack_gguf(type_name: str, blocks: torch.Tensor, rows: int, cols: int) -> PackedWeight:
    return packing().gguf(type_name, blocks, rows, cols)


class PackedJob(Structure):
    """One product as C sees it: pointers into tensors that must outlive it."""

    _fields_ = TABLE.fields("packed_linear")


_packed_job = with_words("packed_linear", PackedJob)


class PackedAtOnce(PackedOps):
    """And products that are made at once. `pool`: what they share their work among."""

    def linear(
        self,
        x: torch.Tensor,
        weight: PackedRows | PackedWeight | Sequence[PackedWeight],
        bias: torch.Tensor | None = None,
        out_dtype: torch.dtype | None = None,
    ) -> torch.Tensor:
        """x [M, cols], bias [rows] or None -> [M, rows] of `out_dtype` (x's where None)."""
        stack = weight if isinstance(weight, PackedRows) else _stacked(weight)
        kind = out_dtype or x.dtype
        if x.dtype not in PACKED_TYPES or kind not in PACKED_TYPES:
            return self.linear(x.float(), stack, bias, torch.float32).to(kind)
        x = _checked_rows(x, stack.cols)
        y = torch.empty((x.shape[0], stack.rows), dtype=kind)
        offset = _checked_bias(bias, stack.rows)
        self.run(self.job(y, x, stack, offset))
        return y

    def job(self, y: torch.Tensor, x: torch.Tensor, stack: PackedRows, bias: torch.Tensor | None) -> PackedJob:
        """As `words` has them. The job may be run again and again on the same memory."""
        job: PackedJob = _packed_job(**self.words(y, x, stack, bias))
        return job

    def run(self, job: PackedJob) -> None:
        with self._pool:
            status = self._c.cadence_packed_linear(byref(job))
        if status:
            raise RuntimeError(f"packed product of {job.m} rows and {job.k} columns failed ({status})")

    def dequantize(self, packed: PackedWeight) -> torch.Tensor:
        """[rows, cols] float32: for quantised kinds bit for bit what the file's format prescribes."""
        return self.embed(torch.arange(packed.rows), packed)


def _stacked(weight: PackedWeight | Sequence[PackedWeight]) -> PackedRows:
    return PackedRows([weight] if isinstance(weight, PackedWeight) else weight)


def _checked_rows(x: torch.Tensor, cols: int) -> torch.Tensor:
    if x.dim() != 2 or x.shape[1] != cols or x.device.type != "cpu":
        raise ValueError(f"x must be [rows, {cols}] on the CPU, not {list(x.shape)} on {x.device}")
    return x if x.stride(1) == 1 and x.stride(0) >= 0 else x.contiguous()


def _checked_bias(bias: torch.Tensor | None, rows: int) -> torch.Tensor | None:
    if bias is None:
        return None
    if tuple(bias.shape) != (rows,) or bias.device.type != "cpu":
        raise ValueError(f"bias must be [{rows}] on the CPU, not {list(bias.shape)} on {bias.device}")
    return bias.detach().to(torch.float32).contiguous()


def packed_ops(isa: str = "auto", pool: Pool | None = None) -> PackedAtOnce:
    return PackedAtOnce(functions(), isa, pool or NoPool())


def dequantize(packed: PackedWeight) -> torch.Tensor:
    return packed_ops().dequantize(packed)


def instruction_sets() -> dict[str, int]:
    return ops.instruction_sets(functions())


def multiplies_halves(isa: str = "auto") -> bool:
    return packed_ops(isa).multiplies_halves

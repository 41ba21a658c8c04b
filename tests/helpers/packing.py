"""Weights packed and multiplied by hand. The tests of a process share one library."""

from __future__ import annotations

import functools
from ctypes import CDLL

import torch

from cadence.device.pool import Pool
from cadence.kernels.cpu.packed import ops
from cadence.kernels.cpu.packed.ops import PackedOps
from cadence.kernels.cpu.packed.pack import WeightPacking
from cadence.kernels.cpu.packed.weights import PackedWeight
from cadence.kernels.cpu.runtime.library import open_library


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


def packed_ops(isa: str = "auto", pool: Pool | None = None) -> PackedOps:
    return PackedOps(functions(), isa, pool)


def dequantize(packed: PackedWeight) -> torch.Tensor:
    return packed_ops().dequantize(packed)


def instruction_sets() -> dict[str, int]:
    return ops.instruction_sets(functions())


def multiplies_halves(isa: str = "auto") -> bool:
    return packed_ops(isa).multiplies_halves

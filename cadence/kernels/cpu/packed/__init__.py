"""Weights packed once at load, and the matrix product on them.

A packed weight holds its rows in groups of sixteen, side by side, in the precision it came in: 4- to 8-bit GGUF blocks
keep their quants and scales exactly, without a dequantised copy. x is rounded to int8 per row and run of 32 where the
weight is quantised, and taken as it is where it is not. A row of y has the same bits alone and among others, whatever
the number of threads, and (all kinds but bf16 times bf16 or F16) whatever the instruction set.
"""

from cadence.kernels.cpu.packed.ops import (
    PACKED_TYPES,
    PackedOps,
    dequantize,
    instruction_sets,
    multiplies_halves,
)
from cadence.kernels.cpu.packed.pack import (
    GGUF_TYPES,
    pack_bf16,
    pack_f32,
    pack_gguf,
    pack_half,
    pack_int4,
    pack_int8,
)
from cadence.kernels.cpu.packed.packer import CpuPacker
from cadence.kernels.cpu.packed.products import CpuMatrix, PackedProducts
from cadence.kernels.cpu.packed.weights import Kind, PackedRows, PackedWeight, packed_bytes

__all__ = [
    "GGUF_TYPES",
    "PACKED_TYPES",
    "CpuMatrix",
    "CpuPacker",
    "Kind",
    "PackedOps",
    "PackedProducts",
    "PackedRows",
    "PackedWeight",
    "dequantize",
    "instruction_sets",
    "multiplies_halves",
    "pack_bf16",
    "pack_f32",
    "pack_gguf",
    "pack_half",
    "pack_int4",
    "pack_int8",
    "packed_bytes",
]

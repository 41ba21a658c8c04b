"""Weights packed once at load, and the matrix product on them.

A packed weight holds its rows in groups of sixteen, side by side, in the precision it came in: 4- to 8-bit GGUF blocks
keep their quants and scales exactly, without a dequantised copy. x is rounded to int8 per row and run of 32 where the
weight is quantised, and taken as it is where it is not. A row of y has the same bits alone and among others, whatever
the number of threads, and (all kinds but bf16 times bf16 or F16) whatever the instruction set.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import Structure, byref, c_int64, c_void_p
from dataclasses import dataclass
from enum import IntEnum

import torch
import torch.nn.functional as F

from cadence.core.errors import ConfigError, WeightsError
from cadence.device.pool import NoPool, Pool
from cadence.kernels.cpu.library import open_library
from cadence.kernels.cpu.memory import HEAP, Memory

PACKED_TYPES = {torch.float32: 0, torch.bfloat16: 1}
_CHUNK_ELEMENTS = 1 << 22  # of a float weight converted at once; bounds temporaries
_QUANT_BYTES = {8: 34, 4: 20}  # of a block of 32
_LARGEST = 65504.0  # scales are float16


class Kind(IntEnum):
    """What a packed weight is made of; the numbers are those of packed.h."""

    F32 = 0
    BF16 = 1
    Q8_0 = 2
    Q4_0 = 3
    Q4_1 = 4
    Q5_0 = 5
    Q5_1 = 6
    Q4_K = 7
    Q5_K = 8
    Q6_K = 9
    F16 = 10  # bfloat16 numbers, held as float16 times a power of two per row


_SOURCE_BLOCKS = {  # (elements, bytes) of a block in the file
    Kind.F32: (1, 4),
    Kind.BF16: (1, 2),
    Kind.Q8_0: (32, 34),
    Kind.Q4_0: (32, 18),
    Kind.Q4_1: (32, 20),
    Kind.Q5_0: (32, 22),
    Kind.Q5_1: (32, 24),
    Kind.Q4_K: (256, 144),
    Kind.Q5_K: (256, 176),
    Kind.Q6_K: (256, 210),
    Kind.F16: (1, 2),
}


class Segment(Structure):
    """A packed weight as C sees it."""

    _fields_ = (("data", c_void_p), ("kind", c_int64), ("rows", c_int64), ("bytes", c_int64))


class PackedJob(Structure):
    """One product as C sees it: pointers into tensors that must outlive it."""

    _fields_ = (
        *[(name, c_void_p) for name in ("y", "x", "bias", "segments")],
        *[(name, c_int64) for name in ("num_segments", "m", "k", "x_stride", "y_stride")],
        *[(name, c_int64) for name in ("x_type", "y_type", "isa")],
    )


@dataclass(frozen=True, slots=True)
class PackedWeight:
    """W [rows, cols]. `data` is written by the pack functions only."""

    kind: Kind
    rows: int
    cols: int
    data: torch.Tensor  # [bytes] uint8, contiguous, on the CPU

    def __post_init__(self) -> None:
        expected = packed_bytes(self.kind, self.rows, self.cols)
        tensor = self.data
        if tensor.dtype is not torch.uint8 or tensor.device.type != "cpu" or not tensor.is_contiguous():
            raise WeightsError("a packed weight is a contiguous uint8 tensor on the CPU")
        if tensor.numel() != expected:
            what = f"{self.kind.name} weight of {self.rows} x {self.cols}"
            raise WeightsError(f"a packed {what} takes {expected} bytes, not {tensor.numel()}")

    def segment(self) -> Segment:
        """Valid as long as this object is."""
        return Segment(self.data.data_ptr(), self.kind, self.rows, self.data.numel())


class PackedRows:
    """Weights of one input stacked, each in its own precision: [sum of rows, cols]."""

    def __init__(self, weights: Sequence[PackedWeight], row_dtype: torch.dtype = torch.float32) -> None:
        """row_dtype: of rows looked up one by one."""
        if not weights:
            raise WeightsError("no packed weights to stack")
        self.weights = tuple(weights)
        self.row_dtype = row_dtype
        self.cols = weights[0].cols
        self.rows = sum(weight.rows for weight in weights)
        if any(weight.cols != self.cols for weight in weights):
            raise WeightsError(f"stacked weights differ in columns: {[weight.cols for weight in weights]}")
        self.segments = (Segment * len(weights))(*[weight.segment() for weight in weights])
        self.address = ctypes.addressof(self.segments)


# ---- packing ----


def packed_bytes(kind: Kind, rows: int, cols: int) -> int:
    size = 0
    if 0 < rows < 2**40 and 0 < cols <= 2**20:
        size = int(open_library().cadence_packed_bytes(kind, rows, cols))
    if size == 0:
        raise WeightsError(f"a weight of {rows} x {cols} cannot be packed as {kind.name}")
    return size


def pack_f32(tensor: torch.Tensor, memory: Memory = HEAP) -> PackedWeight:
    """tensor [rows, cols] of any float dtype."""
    return _pack_float(Kind.F32, tensor, torch.float32, memory)


def pack_bf16(tensor: torch.Tensor, memory: Memory = HEAP) -> PackedWeight:
    """tensor [rows, cols] of any float dtype, rounded to bfloat16."""
    return _pack_float(Kind.BF16, tensor, torch.bfloat16, memory)


def pack_half(tensor: torch.Tensor, memory: Memory = HEAP) -> PackedWeight:
    """The same for instruction sets that `multiplies_halves`; what is below 2^-23 of its row's largest loses bits."""
    return _pack_float(Kind.F16, tensor, torch.bfloat16, memory)


def pack_int8(tensor: torch.Tensor, memory: Memory = HEAP) -> PackedWeight:
    """tensor [rows, cols] of any float dtype: int8 and one float16 scale per row and 32 columns."""
    return _pack_quantized(Kind.Q8_0, tensor, 8, memory)


def pack_int4(tensor: torch.Tensor, memory: Memory = HEAP) -> PackedWeight:
    """tensor [rows, cols] of any float dtype: sixteen levels, scale and shift in float16 per row and 32 columns, the
    range of each run chosen for the least squared error."""
    return _pack_quantized(Kind.Q4_1, tensor, 4, memory)


def pack_gguf(type_name: str, blocks: torch.Tensor, rows: int, cols: int, memory: Memory = HEAP) -> PackedWeight:
    """blocks: uint8, the bytes of a GGUF tensor of rows x cols as they lie in the file."""
    if type_name not in GGUF_TYPES:
        raise WeightsError(f"GGUF type {type_name} cannot be packed; types packed: {', '.join(GGUF_TYPES)}")
    if blocks.dtype is not torch.uint8 or blocks.device.type != "cpu":
        raise WeightsError(f"GGUF blocks are bytes on the CPU, not {blocks.dtype} on {blocks.device}")
    return _pack(Kind[type_name], blocks.reshape(-1), rows, cols, memory)


GGUF_TYPES = tuple(kind.name for kind in Kind if kind is not Kind.F16)  # those that pack_gguf takes


def dequantize(packed: PackedWeight) -> torch.Tensor:
    """[rows, cols] float32: for quantised kinds bit for bit what the file's format prescribes."""
    return PackedOps().embed(torch.arange(packed.rows), packed)


def _pack(kind: Kind, source: torch.Tensor, rows: int, cols: int, memory: Memory) -> PackedWeight:
    """source: uint8 [bytes], contiguous."""
    size = packed_bytes(kind, rows, cols)
    block, nbytes = _SOURCE_BLOCKS[kind]
    if cols % block or source.numel() != rows * cols // block * nbytes:  # before memory for a size that lies is taken
        raise WeightsError(f"{source.numel()} bytes do not hold {rows} x {cols} weights of type {kind.name}")
    data = memory.take(size)
    sizes = (source.numel(), kind, rows, cols)
    if open_library().cadence_pack(data.data_ptr(), data.numel(), source.data_ptr(), *sizes) != 0:
        raise WeightsError(f"a weight of {rows} x {cols} cannot be packed as {kind.name}")
    return PackedWeight(kind, rows, cols, data)


def _matrix(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.dim() != 2 or not tensor.is_floating_point():
        raise WeightsError(f"a weight to pack is a float matrix, not {tensor.dtype} {list(tensor.shape)}")
    return tensor.detach()


def _pack_float(kind: Kind, tensor: torch.Tensor, dtype: torch.dtype, memory: Memory) -> PackedWeight:
    source = _matrix(tensor).to("cpu", dtype).contiguous()
    return _pack(kind, source.view(torch.uint8).reshape(-1), *tensor.shape, memory)


def _pack_quantized(kind: Kind, tensor: torch.Tensor, bits: int, memory: Memory) -> PackedWeight:
    """Quantises whole rows, a few at a time, to blocks as a GGUF file would have them."""
    tensor = _matrix(tensor)
    rows, cols = tensor.shape
    padded = -(-cols // 32) * 32
    packed_bytes(kind, rows, cols)  # refuses empty ones
    blocks = torch.empty((rows, padded // 32, _QUANT_BYTES[bits]), dtype=torch.uint8)
    step = max(1, _CHUNK_ELEMENTS // padded)
    for start in range(0, rows, step):
        part = F.pad(tensor[start : start + step].to("cpu", torch.float32), (0, padded - cols)).contiguous()
        if not part.abs().amax() <= _LARGEST:
            raise WeightsError(f"weights to quantise must be finite and at most {_LARGEST:.0f}")
        into = blocks[start : start + step]
        open_library().cadence_quantize(into.data_ptr(), part.data_ptr(), part.numel() // 32, bits)
    packed = _pack(kind, blocks.view(-1), rows, padded, memory)
    return PackedWeight(kind, rows, cols, packed.data)


# ---- using ----


def instruction_sets() -> dict[str, int]:
    """Those of this machine by name, lowest first."""
    found: dict[str, int] = {}
    index = 0
    while (name := open_library().cadence_packed_isa(index)) is not None:
        if name:
            found[name.decode()] = index
        index += 1
    return found


def multiplies_halves(isa: str = "auto") -> bool:
    """Whether bfloat16 x times a weight of kind F16 is done in float16: faster than with bfloat16 weights, and with the
    eleven bits of float16 in sums over 64 columns. Elsewhere it is done in float32, slowly."""
    return PackedOps(isa).isa == "neon-half"


class PackedOps:
    """`isa`: "auto" = the best of this machine, or a name from `instruction_sets()`. `pool`: what `linear`, `run` and
    `embed` share their work among."""

    def __init__(self, isa: str = "auto", pool: Pool | None = None) -> None:
        found = instruction_sets()
        if isa != "auto" and isa not in found:
            raise ConfigError(f"instruction set {isa!r} is not one of this machine's: {', '.join(found)}", "cpu_isa")
        self.isa = next(reversed(found)) if isa == "auto" else isa
        self.index = found[self.isa]
        self._c = open_library()
        self._pool = pool or NoPool()

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
        """y [M, rows] and x [M, cols] float32 or bfloat16 with contiguous rows, bias [rows] float32
        contiguous. The job may be run again and again on the same memory."""
        return PackedJob(*self.words(y, x, stack, bias))

    def words(self, y: torch.Tensor, x: torch.Tensor, stack: PackedRows, bias: torch.Tensor | None) -> tuple[int, ...]:
        """The fields of `job`, for a list of calls. Sizes are checked here: a listed call cannot say what is wrong."""
        if x.shape[1] != stack.cols or y.shape != (x.shape[0], stack.rows):
            raise ValueError(f"x {list(x.shape)} and y {list(y.shape)} do not fit {stack.rows} x {stack.cols}")
        at = (y.data_ptr(), x.data_ptr(), 0 if bias is None else bias.data_ptr(), stack.address)
        sizes = (len(stack.weights), x.shape[0], stack.cols, x.stride(0), y.stride(0))
        return *at, *sizes, PACKED_TYPES[x.dtype], PACKED_TYPES[y.dtype], self.index

    def row_words(self, out: torch.Tensor, ids: torch.Tensor, packed: PackedWeight) -> tuple[int, ...]:
        """Rows ids [T] of a packed weight into out [T, cols], for a list of calls. Ids must exist."""
        segment = (packed.data.data_ptr(), int(packed.kind), packed.rows, packed.data.numel())
        sizes = (ids.data_ptr(), ids.element_size(), ids.shape[0], packed.cols)
        return out.data_ptr(), *segment, *sizes, PACKED_TYPES[out.dtype]

    def run(self, job: PackedJob) -> None:
        with self._pool:
            status = self._c.cadence_packed_linear(byref(job))
        if status:
            raise RuntimeError(f"packed product of {job.m} rows and {job.k} columns failed ({status})")

    def embed(self, ids: torch.Tensor, packed: PackedWeight, out_dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """Rows ids [T] int32 or int64 of a packed weight -> [T, cols]."""
        if ids.dtype not in (torch.int32, torch.int64) or ids.dim() != 1 or ids.device.type != "cpu":
            raise ValueError(f"ids must be a vector of integers on the CPU, not {ids.dtype} {list(ids.shape)}")
        if out_dtype not in PACKED_TYPES:
            return self.embed(ids, packed).to(out_dtype)
        ids = ids.contiguous()
        out = torch.empty((ids.shape[0], packed.cols), dtype=out_dtype)
        at = (out.data_ptr(), byref(packed.segment()), ids.data_ptr(), ids.element_size())
        with self._pool:
            status = self._c.cadence_packed_rows(*at, ids.shape[0], packed.cols, PACKED_TYPES[out_dtype])
        if status:
            raise ValueError(f"ids must lie between 0 and {packed.rows - 1}")
        return out


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

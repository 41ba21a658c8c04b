"""Weights into their packed form, once, while a model is loaded."""

from __future__ import annotations

from ctypes import CDLL

import torch
import torch.nn.functional as F

from cadence.core.errors import WeightsError
from cadence.kernels.cpu.packed.weights import Kind, PackedWeight
from cadence.kernels.cpu.runtime.memory import HEAP, Memory

_CHUNK_ELEMENTS = 1 << 22  # of a float weight converted at once; bounds temporaries
_QUANT_BYTES = {8: 34, 4: 20}  # of a block of 32
_LARGEST = 65504.0  # scales are float16
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
    Kind.HALF: (1, 2),
    Kind.Q4_Z: (32, 20),
    Kind.Q8_F: (32, 36),
    Kind.F16: (1, 2),
    Kind.IQ4_NL: (32, 18),
    Kind.IQ4_XS: (256, 136),
    Kind.MXFP4: (32, 17),
    Kind.T4_F: (32, 40),
    Kind.F8: (32, 36),
    Kind.NF4: (64, 36),
    Kind.FP4: (64, 36),
    Kind.Q2_K: (256, 84),
    Kind.Q8_Z: (32, 36),
}
BLOCK_TYPES = tuple(kind.name for kind in Kind if kind is not Kind.HALF)  # those that `WeightPacking.gguf` takes


class WeightPacking:
    """Packs with the functions of a library, into a memory."""

    def __init__(self, functions: CDLL, memory: Memory = HEAP) -> None:
        self._c = functions
        self._memory = memory

    def f32(self, tensor: torch.Tensor) -> PackedWeight:
        """tensor [rows, cols] of any float dtype."""
        return self._pack_float(Kind.F32, tensor, torch.float32)

    def bf16(self, tensor: torch.Tensor) -> PackedWeight:
        """tensor [rows, cols] of any float dtype, rounded to bfloat16."""
        return self._pack_float(Kind.BF16, tensor, torch.bfloat16)

    def f16(self, tensor: torch.Tensor) -> PackedWeight:
        """tensor [rows, cols] of any float dtype, rounded to float16."""
        return self._pack_float(Kind.F16, tensor, torch.float16)

    def half(self, tensor: torch.Tensor) -> PackedWeight:
        """The same for `PackedOps` that `multiplies_halves`; what is below 2^-23 of its row's largest loses bits."""
        return self._pack_float(Kind.HALF, tensor, torch.bfloat16)

    def int8(self, tensor: torch.Tensor) -> PackedWeight:
        """tensor [rows, cols] of any float dtype: int8 and one float16 scale per row and 32 columns."""
        return self._pack_quantized(Kind.Q8_0, tensor, 8)

    def int4(self, tensor: torch.Tensor) -> PackedWeight:
        """tensor [rows, cols] of any float dtype: sixteen levels, scale and shift in float16 per row and 32 columns,
        the range of each run chosen for the least squared error."""
        return self._pack_quantized(Kind.Q4_1, tensor, 4)

    def gguf(self, type_name: str, blocks: torch.Tensor, rows: int, cols: int) -> PackedWeight:
        """blocks: uint8, the bytes of a GGUF tensor of rows x cols as they lie in the file, or of a kind of our own."""
        if type_name not in BLOCK_TYPES:
            raise WeightsError(f"blocks of {type_name} cannot be packed; types packed: {', '.join(BLOCK_TYPES)}")
        if blocks.dtype is not torch.uint8 or blocks.device.type != "cpu":
            raise WeightsError(f"blocks are bytes on the CPU, not {blocks.dtype} on {blocks.device}")
        return self._pack(Kind[type_name], blocks.reshape(-1), rows, cols)

    def weight(self, kind: Kind, rows: int, cols: int, data: torch.Tensor) -> PackedWeight:
        """data: as this class packs it."""
        expected = self.num_bytes(kind, rows, cols)
        if data.dtype is not torch.uint8 or data.device.type != "cpu" or not data.is_contiguous():
            raise WeightsError("a packed weight is a contiguous uint8 tensor on the CPU")
        if data.numel() != expected:
            what = f"{kind.name} weight of {rows} x {cols}"
            raise WeightsError(f"a packed {what} takes {expected} bytes, not {data.numel()}")
        return PackedWeight(kind, rows, cols, data)

    def num_bytes(self, kind: Kind, rows: int, cols: int) -> int:
        size = 0
        if 0 < rows < 2**40 and 0 < cols <= 2**20:
            size = int(self._c.cadence_packed_bytes(kind, rows, cols))
        if size == 0:
            raise WeightsError(f"a weight of {rows} x {cols} cannot be packed as {kind.name}")
        return size

    def _pack(self, kind: Kind, source: torch.Tensor, rows: int, cols: int) -> PackedWeight:
        """source: uint8 [bytes], contiguous."""
        size = self.num_bytes(kind, rows, cols)
        block, nbytes = _SOURCE_BLOCKS[kind]
        if cols % block or source.numel() != rows * cols // block * nbytes:  # before memory is taken for a wrong size
            raise WeightsError(f"{source.numel()} bytes do not hold {rows} x {cols} weights of type {kind.name}")
        data = self._memory.take(size)
        sizes = (source.numel(), kind, rows, cols)
        if self._c.cadence_pack(data.data_ptr(), data.numel(), source.data_ptr(), *sizes) != 0:
            raise WeightsError(f"a weight of {rows} x {cols} cannot be packed as {kind.name}")
        return self.weight(kind, rows, cols, data)

    def _pack_float(self, kind: Kind, tensor: torch.Tensor, dtype: torch.dtype) -> PackedWeight:
        source = _matrix(tensor).to("cpu", dtype).contiguous()
        return self._pack(kind, source.view(torch.uint8).reshape(-1), *tensor.shape)

    def _pack_quantized(self, kind: Kind, tensor: torch.Tensor, bits: int) -> PackedWeight:
        """Quantises whole rows, a few at a time, to blocks as a GGUF file would have them."""
        tensor = _matrix(tensor)
        rows, cols = tensor.shape
        padded = -(-cols // 32) * 32
        self.num_bytes(kind, rows, cols)  # refuses empty ones
        blocks = torch.empty((rows, padded // 32, _QUANT_BYTES[bits]), dtype=torch.uint8)
        step = max(1, _CHUNK_ELEMENTS // padded)
        for start in range(0, rows, step):
            part = F.pad(tensor[start : start + step].to("cpu", torch.float32), (0, padded - cols)).contiguous()
            if not part.abs().amax() <= _LARGEST:
                raise WeightsError(f"weights to quantise must be finite and at most {_LARGEST:.0f}")
            into = blocks[start : start + step]
            self._c.cadence_quantize(into.data_ptr(), part.data_ptr(), part.numel() // 32, bits)
        packed = self._pack(kind, blocks.view(-1), rows, padded)
        return self.weight(kind, rows, cols, packed.data)


def _matrix(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.dim() != 2 or not tensor.is_floating_point():
        raise WeightsError(f"a weight to pack is a float matrix, not {tensor.dtype} {list(tensor.shape)}")
    return tensor.detach()

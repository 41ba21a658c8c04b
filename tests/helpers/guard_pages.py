"""Packed products and ops on states on memory that ends where the data ends: a read or write further ends this program.

python -m tests.helpers.guard_pages
"""

from __future__ import annotations

import ctypes
import mmap

import torch

from cadence.device.calls import Calls
from cadence.device.pool import ThreadPool
from cadence.gguf.file import GGML_TYPES
from cadence.kernels.cpu.ops import CpuOps
from cadence.kernels.cpu.packed.weights import PackedRows, PackedWeight
from tests.helpers.packing import (
    functions,
    instruction_sets,
    pack_bf16,
    pack_f16,
    pack_f32,
    pack_gguf,
    pack_half,
    packed_ops,
    packing,
)
from tests.helpers.state_cases import conv_case, delta_case, head_scan_case, runs_of, scan_case

FLOATS = {"F32": pack_f32, "BF16": pack_bf16, "F16": pack_f16, "HALF": pack_half}
KINDS = (*FLOATS, "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K")
_LIBC = ctypes.CDLL(None, use_errno=True)
_HELD: list[mmap.mmap] = []  # the memory outlives the tensors on it


def against_the_wall(tensor: torch.Tensor) -> torch.Tensor:
    """A copy whose last byte is the last of a page; the next page can be neither read nor written."""
    source = tensor.contiguous().view(-1).view(torch.uint8)
    pages = -(-source.numel() // mmap.PAGESIZE)
    memory = mmap.mmap(-1, (pages + 1) * mmap.PAGESIZE)
    _HELD.append(memory)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    if _LIBC.mprotect(ctypes.c_void_p(start + pages * mmap.PAGESIZE), ctypes.c_size_t(mmap.PAGESIZE), 0) != 0:
        raise OSError(ctypes.get_errno(), "mprotect")
    begin = pages * mmap.PAGESIZE - source.numel()
    out = torch.frombuffer(memory, dtype=torch.uint8, count=source.numel(), offset=begin)
    out.copy_(source)
    return out.view(tensor.dtype).view(tensor.shape)


def packed(kind: str, rows: int, cols: int) -> PackedWeight:
    if kind in FLOATS:
        made = FLOATS[kind](torch.randn(rows, cols))
    else:
        form = next(form for form in GGML_TYPES.values() if form.name == kind)
        blocks = torch.randint(0, 64, (rows * cols // form.block * form.nbytes,), dtype=torch.uint8)
        made = pack_gguf(kind, against_the_wall(blocks), rows, cols)
    return packing().weight(made.kind, rows, cols, against_the_wall(made.data))


def check_states() -> None:
    ops = CpuOps(Calls(2)).states
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        for case in (conv_case(dtype), scan_case(dtype, 37, 5), head_scan_case(dtype, 6, 19), delta_case(dtype)):
            tables = tuple(against_the_wall(table) for table in case.tables(2, 3))
            for counts in ((1, 40, 0, 37, 3), (1, 3, 2, 1, 2)):
                inputs = against_the_wall(torch.randn(counts[1], case.width).to(dtype))
                case.call(ops, inputs, tables, runs_of([counts]))


def main() -> None:
    check_states()
    pool = ThreadPool(functions(), 2)
    for kind in KINDS:
        for rows, cols in ((1, 256), (19, 512)) if kind.endswith("K") else ((1, 32), (19, 288)):
            weight = packed(kind, rows, cols)
            stack = PackedRows([weight])
            for isa in instruction_sets():
                ops = packed_ops(isa, pool)
                ops.embed(torch.tensor([rows - 1]), weight)
                for count in (1, 2, 3, 5, 16, 37):
                    for dtype in (torch.float32, torch.bfloat16):
                        x = against_the_wall(torch.randn(count, cols).to(dtype))
                        y = against_the_wall(torch.zeros(count, rows, dtype=dtype))
                        ops.run(ops.job(y, x, stack, against_the_wall(torch.zeros(rows))))
    print("done")


if __name__ == "__main__":
    main()

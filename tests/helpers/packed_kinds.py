"""A random weight of every packed kind, and x for it."""

from __future__ import annotations

import torch

from cadence.kernels.cpu.packed.weights import PackedWeight
from cadence.models.quant.block_kinds import block_size
from tests.helpers.packing import pack_bf16, pack_f16, pack_f32, pack_gguf, pack_half

HALVES_AT = {  # bytes of a block that hold float16 numbers
    "Q8_0": (0,),
    "Q4_0": (0,),
    "Q4_1": (0, 2),
    "Q5_0": (0,),
    "Q5_1": (0, 2),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
    "Q4_Z": (0,),
    "Q8_F": (),
    "IQ4_NL": (0,),
    "IQ4_XS": (0,),
    "MXFP4": (),
    "T4_F": (),
    "F8": (),
    "NF4": (),
    "FP4": (),
    "Q2_K": (80, 82),
    "Q8_Z": (0,),
}
QUANTIZED = [name for name in HALVES_AT if name != "F8"]  # that x is rounded for
FLOATS = {"F32": pack_f32, "BF16": pack_bf16, "F16": pack_f16, "HALF": pack_half}
EVERY = [*HALVES_AT, *FLOATS]


def generator(*seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(hash(seed) % 2**31)


def random_blocks(name: str, rows: int, cols: int) -> torch.Tensor:
    """[bytes] uint8: any bits, with finite scales."""
    (values, num_bytes), pick = block_size(name), generator(rows, cols)
    blocks = torch.randint(0, 256, (rows * cols // values, num_bytes), generator=pick, dtype=torch.uint8)
    for start in HALVES_AT[name]:
        scales = torch.randn(len(blocks), 1, generator=pick) * 0.01
        blocks[:, start : start + 2] = scales.to(torch.float16).view(torch.uint8)
    if name == "Q4_Z":
        zeros = torch.randint(0, 17, (len(blocks), 1), generator=pick)
        blocks[:, 2:4] = zeros.to(torch.float16).view(torch.uint8)
    if name == "Q8_Z":
        zeros = torch.randint(-128, 129, (len(blocks), 1), generator=pick)
        blocks[:, 2:4] = zeros.to(torch.float16).view(torch.uint8)
    if name in ("Q8_F", "NF4", "FP4"):
        blocks[:, :4] = (torch.randn(len(blocks), 1, generator=pick) * 0.01).view(torch.uint8)
    if name == "MXFP4":
        blocks[:, 0] = blocks[:, 0] % 20 + 110
        blocks[:2, 0] = torch.tensor([0, 1])  # scales below the normal floats
    if name == "F8":
        runs = torch.randn(rows, -(-cols // 128), generator=pick).repeat_interleave(4, dim=1)[:, : cols // 32]
        blocks[:, :4] = (runs * 0.001).reshape(-1, 1).view(torch.uint8)
        blocks[:, 4:][(blocks[:, 4:] & 127) == 127] = 126  # all are numbers
    if name == "T4_F":
        blocks[:, :16] = torch.arange(-127, 129, 17).clamp(max=127).to(torch.int8).view(torch.uint8)
        blocks[:, 16:24] = (torch.randn(len(blocks), 2, generator=pick) * 0.01).view(torch.uint8)
    return blocks.view(-1)


def make(name: str, rows: int, cols: int) -> PackedWeight:
    if name in HALVES_AT:
        return pack_gguf(name, random_blocks(name, rows, cols), rows, cols)
    return FLOATS[name](torch.randn(rows, cols, generator=generator(rows, cols)) * 0.05)


def make_x(rows: int, cols: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    pick = generator(rows, cols, 7)
    return (torch.randn(rows, cols, generator=pick) * torch.randn(rows, 1, generator=pick).exp()).to(dtype)

"""GGUF tensors to float32, bit for bit what the format prescribes: products and sums are rounded one by one, in order.

Every function fills `out [n, block]` from `blocks [n, bytes per block]` uint8. Work goes in chunks, so temporaries stay
a few megabytes however large the tensor.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from cadence.core.errors import WeightsError
from cadence.gguf import dequant_few, dequant_grid
from cadence.gguf.dequant_few import Parts, half
from cadence.gguf.file import GGMLType

_CHUNK_ELEMENTS = 1 << 20


def dequantize(raw: torch.Tensor, kind: GGMLType, shape: tuple[int, ...], name: str) -> torch.Tensor:
    """raw [bytes] uint8 on any device -> a new float32 tensor of `shape` there. `name` is for the message."""
    fill = _scaled(_PARTS[kind.name]) if kind.name in _PARTS else _FILL.get(kind.name)
    if fill is None:
        known = ", ".join((*_FILL, *_PARTS))
        raise WeightsError(f"tensor {name!r} has GGUF type {kind.name}; types read: {known}")
    blocks = raw.view(-1, kind.nbytes)
    out = torch.empty((blocks.shape[0], kind.block), dtype=torch.float32, device=raw.device)
    step = _CHUNK_ELEMENTS // kind.block
    for start in range(0, blocks.shape[0], step):
        fill(blocks[start : start + step], out[start : start + step])
    return out.view(shape)


def parts_of_blocks(kind: str, blocks: torch.Tensor) -> Parts | None:
    """blocks [n, bytes per block] uint8 -> scales [n, runs] and small numbers [n, runs, length] float32, whose products
    the values are; None for types that are made in another way."""
    if kind not in _PARTS:
        return None
    scales, numbers = _PARTS[kind](blocks)
    return scales, numbers.reshape(*scales.shape, -1)


def _scaled(parts: Callable[[torch.Tensor], Parts]) -> Callable[[torch.Tensor, torch.Tensor], None]:
    def fill(blocks: torch.Tensor, out: torch.Tensor) -> None:
        scales, numbers = parts(blocks)
        runs = numbers.reshape(*scales.shape, -1)
        torch.mul(runs, scales[:, :, None], out=out.view(runs.shape))

    return fill


def _f32(blocks: torch.Tensor, out: torch.Tensor) -> None:
    out.copy_(blocks.view(torch.float32))


def _f16(blocks: torch.Tensor, out: torch.Tensor) -> None:
    out.copy_(blocks.view(torch.float16))


def _bf16(blocks: torch.Tensor, out: torch.Tensor) -> None:
    out.copy_(blocks.view(torch.bfloat16))


def _nibbles(blocks: torch.Tensor, start: int, out: torch.Tensor) -> None:
    """16 bytes of every block -> 32 numbers: low halves, then high halves."""
    packed = blocks[:, start : start + 16]
    out[:, :16].copy_(packed & 15)
    out[:, 16:].copy_(packed >> 4)


def _q8_0(blocks: torch.Tensor, out: torch.Tensor) -> None:
    torch.mul(blocks[:, 2:].view(torch.int8), half(blocks, 0), out=out)


def _q4_0(blocks: torch.Tensor, out: torch.Tensor) -> None:
    _nibbles(blocks, 2, out)
    out.sub_(8).mul_(half(blocks, 0))


def _q4_1(blocks: torch.Tensor, out: torch.Tensor) -> None:
    _nibbles(blocks, 4, out)
    out.mul_(half(blocks, 0)).add_(half(blocks, 2))


def _fifth_bits(blocks: torch.Tensor, start: int, out: torch.Tensor) -> None:
    """Adds 16 to the numbers whose bit in the 32-bit word at byte `start` is set."""
    shifts = torch.arange(8, dtype=torch.uint8, device=blocks.device)
    bits = (blocks[:, start : start + 4, None] >> shifts) & 1
    out.add_(bits.view(-1, 32), alpha=16)


def _q5_0(blocks: torch.Tensor, out: torch.Tensor) -> None:
    _nibbles(blocks, 6, out)
    _fifth_bits(blocks, 2, out)
    out.sub_(16).mul_(half(blocks, 0))


def _q5_1(blocks: torch.Tensor, out: torch.Tensor) -> None:
    _nibbles(blocks, 8, out)
    _fifth_bits(blocks, 4, out)
    out.mul_(half(blocks, 0)).add_(half(blocks, 2))


def _k_scales(blocks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Scale and minimum of the eight runs of 32 in a Q4_K or Q5_K block, float32 [n, 8, 1] each.

    Twelve bytes hold eight 6-bit pairs: the first four pairs whole in bytes 0-7, the last four with their low
    halves in bytes 8-11 and their top bits above the first four.
    """
    first, second, third = blocks[:, 4:8], blocks[:, 8:12], blocks[:, 12:16]
    scales = torch.cat([first & 63, (third & 15) | ((first >> 6) << 4)], dim=1)
    minimums = torch.cat([second & 63, (third >> 4) | ((second >> 6) << 4)], dim=1)
    return (scales * half(blocks, 0))[:, :, None], (minimums * half(blocks, 2))[:, :, None]


def _q4_k(blocks: torch.Tensor, out: torch.Tensor) -> None:
    packed = blocks[:, 16:144].view(-1, 4, 32)
    runs = out.view(-1, 4, 2, 32)
    runs[:, :, 0].copy_(packed & 15)
    runs[:, :, 1].copy_(packed >> 4)
    scales, minimums = _k_scales(blocks)
    out.view(-1, 8, 32).mul_(scales).sub_(minimums)


def _q5_k(blocks: torch.Tensor, out: torch.Tensor) -> None:
    packed = blocks[:, 48:176].view(-1, 4, 32)
    runs = out.view(-1, 4, 2, 32)
    runs[:, :, 0].copy_(packed & 15)
    runs[:, :, 1].copy_(packed >> 4)
    shifts = torch.arange(8, dtype=torch.uint8, device=blocks.device)[:, None]
    fifth = (blocks[:, 16:48].unsqueeze(1) >> shifts) & 1  # [n, 8, 32]: bit r of byte j belongs to run r
    eighths = out.view(-1, 8, 32)
    eighths.add_(fifth, alpha=16)
    scales, minimums = _k_scales(blocks)
    eighths.mul_(scales).sub_(minimums)


def _q6_k(blocks: torch.Tensor, out: torch.Tensor) -> None:
    low = blocks[:, :128].view(-1, 2, 1, 64)  # per half: 64 bytes, their low nibbles, then their high ones
    nibbles = torch.cat([low & 15, low >> 4], dim=2).view(-1, 2, 4, 32)
    shifts = torch.tensor([0, 2, 4, 6], dtype=torch.uint8, device=blocks.device)[:, None]
    high = (blocks[:, 128:192].view(-1, 2, 1, 32) >> shifts) & 3  # [n, 2, 4, 32]
    out.view(-1, 2, 4, 32).copy_(nibbles | (high << 4))
    scales = blocks[:, 192:208].view(torch.int8) * half(blocks, 208)
    out.view(-1, 16, 16).sub_(32).mul_(scales[:, :, None])


_FILL: dict[str, Callable[[torch.Tensor, torch.Tensor], None]] = {
    "F32": _f32,
    "F16": _f16,
    "BF16": _bf16,
    "Q8_0": _q8_0,
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
    "Q2_K": dequant_few.q2_k,
    "IQ4_NL": dequant_few.iq4_nl,
    "IQ4_XS": dequant_few.iq4_xs,
    "MXFP4": dequant_few.mxfp4,
}
_PARTS: dict[str, Callable[[torch.Tensor], Parts]] = {
    "Q3_K": dequant_few.q3_k,
    "NVFP4": dequant_few.nvfp4,
    "TQ1_0": dequant_few.tq1_0,
    "TQ2_0": dequant_few.tq2_0,
    "IQ2_XXS": dequant_grid.iq2_xxs,
    "IQ2_XS": dequant_grid.iq2_xs,
    "IQ2_S": dequant_grid.iq2_s,
    "IQ3_XXS": dequant_grid.iq3_xxs,
    "IQ3_S": dequant_grid.iq3_s,
    "IQ1_S": dequant_grid.iq1_s,
    "IQ1_M": dequant_grid.iq1_m,
}

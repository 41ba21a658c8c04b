"""GGUF types of two and three bits, of three values, of tables of sixteen: to float32, as `dequant` has the others,
or to scales and small numbers, as `dequant_grid` has them."""

from __future__ import annotations

import torch

from cadence.core.block_grids import FP4_VALUES, IQ4_VALUES

Parts = tuple[torch.Tensor, torch.Tensor]  # scales [n, runs], numbers [n, ...] that they are multiplied by


def half(blocks: torch.Tensor, start: int) -> torch.Tensor:
    """The float16 at byte `start` of every block, as float32 [n, 1]."""
    return blocks[:, start : start + 2].contiguous().view(torch.float16).float()


def shifted(packed: torch.Tensor, bits: int, dim: int) -> torch.Tensor:
    """Bytes [..., 1 at dim, ...] -> the numbers of so many bits that each has, the lowest first, along `dim`."""
    shape = [1] * packed.dim()
    shape[dim] = -1
    shifts = torch.arange(0, 8, bits, dtype=torch.uint8, device=packed.device).view(shape)
    return (packed >> shifts) & ((1 << bits) - 1)


def q2_k(blocks: torch.Tensor, out: torch.Tensor) -> None:
    runs = out.view(-1, 16, 16)
    runs.copy_(shifted(blocks[:, 16:80].view(-1, 2, 1, 32), 2, 2).view(-1, 16, 16))
    scales = (blocks[:, :16] & 15) * half(blocks, 80)
    least = (blocks[:, :16] >> 4) * half(blocks, 82)
    runs.mul_(scales[:, :, None]).sub_(least[:, :, None])


def q3_k(blocks: torch.Tensor) -> Parts:
    runs = shifted(blocks[:, 32:96].view(-1, 2, 1, 32), 2, 2).view(-1, 16, 16).float()
    runs.sub_(4).add_(shifted(blocks[:, :32].view(-1, 1, 32), 1, 1).view(-1, 16, 16), alpha=4)
    low = shifted(blocks[:, 96:104].view(-1, 1, 8), 4, 1).view(-1, 16)
    high = shifted(blocks[:, 104:108].view(-1, 1, 4), 2, 1).view(-1, 16)
    return ((low | (high << 4)).to(torch.int8) - 32) * half(blocks, 108), runs


def _from_table(codes: torch.Tensor, values: tuple[int, ...]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float32, device=codes.device)[codes.int()]


def iq4_nl(blocks: torch.Tensor, out: torch.Tensor) -> None:
    codes = shifted(blocks[:, 2:18].unsqueeze(1), 4, 1)
    torch.mul(_from_table(codes, IQ4_VALUES).view(-1, 32), half(blocks, 0), out=out)


def iq4_xs(blocks: torch.Tensor, out: torch.Tensor) -> None:
    low = shifted(blocks[:, 4:8].unsqueeze(2), 4, 2).reshape(-1, 8)
    high = shifted(blocks[:, 2:4].unsqueeze(2), 2, 2).reshape(-1, 8)
    scales = ((low | (high << 4)).to(torch.int8) - 32) * half(blocks, 0)
    codes = shifted(blocks[:, 8:136].view(-1, 8, 1, 16), 4, 2).view(-1, 8, 32)
    torch.mul(_from_table(codes, IQ4_VALUES), scales[:, :, None], out=out.view(-1, 8, 32))


def mxfp4(blocks: torch.Tensor, out: torch.Tensor) -> None:
    exponents = blocks[:, :1].to(torch.int32)
    bits = torch.where(exponents < 2, 0x00200000 << exponents.clamp(max=1), (exponents - 1) << 23)
    codes = shifted(blocks[:, 1:17].unsqueeze(1), 4, 1)
    torch.mul(_from_table(codes, FP4_VALUES).view(-1, 32), bits.view(torch.float32), out=out)


def nvfp4(blocks: torch.Tensor) -> Parts:
    scales = blocks[:, :4].to(torch.int32)
    exponents, parts = (scales >> 3) & 15, scales & 7
    normal = (((exponents + 120) << 23) | (parts << 20)).view(torch.float32)
    found = torch.where(exponents == 0, parts * 2.0**-9, normal) * 0.5
    found = torch.where((scales == 0) | (scales == 127), 0.0, found)
    codes = shifted(blocks[:, 4:36].view(-1, 4, 1, 8), 4, 2).view(-1, 4, 16)
    return found, _from_table(codes, FP4_VALUES)


def tq1_0(blocks: torch.Tensor) -> Parts:
    """Five values a byte, as the digits of a fraction in base three; the last four bytes have four."""
    digits = torch.tensor([1, 3, 9, 27, 81], dtype=torch.uint8, device=blocks.device)[:, None]
    out = torch.empty((blocks.shape[0], 256), dtype=torch.float32, device=blocks.device)
    for start, stop, at, count in ((0, 32, 0, 5), (32, 48, 160, 5), (48, 52, 240, 4)):
        shifted_left = blocks[:, None, start:stop] * digits[:count]
        values = (shifted_left.to(torch.int16) * 3) >> 8
        out[:, at : at + count * (stop - start)].copy_(values.flatten(1))
    return half(blocks, 52), out.sub_(1)


def tq2_0(blocks: torch.Tensor) -> Parts:
    return half(blocks, 64), shifted(blocks[:, :64].view(-1, 2, 1, 32), 2, 2).view(-1, 256).float().sub_(1)

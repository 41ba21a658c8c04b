"""GGUF types whose values are entries of grids, as scales and small numbers.

Every function makes of `blocks [n, bytes per block]` uint8 the scales of their runs [n, runs] and the numbers [n, ...]
that these are to be multiplied by, float32. A grid's entry has eight values, or four; their signs lie beside the index,
one bit each, or seven bits for eight values, of which an even number is negative.
"""

from __future__ import annotations

import torch

from cadence.core.block_grids import block_grid
from cadence.gguf.dequant_few import Parts, half, shifted

_DELTA = 0.125


def _entries(kind: str, index: torch.Tensor) -> torch.Tensor:
    """index [n, m] -> [n, m, values] float32"""
    return torch.from_numpy(block_grid(kind)).to(index.device, torch.float32)[index.long()]


def _signs(bits: torch.Tensor) -> torch.Tensor:
    """bits [n, m]: 8 a number -> [n, m, 8] of 1 and -1"""
    each = (bits.to(torch.int32).unsqueeze(2) >> torch.arange(8, dtype=torch.int32, device=bits.device)) & 1
    return (1 - 2 * each).float()


def _even(seven: torch.Tensor) -> torch.Tensor:
    """Seven bits -> eight, of which an even number is set."""
    folded = seven ^ (seven >> 4)
    folded = folded ^ (folded >> 2)
    return seven | (((folded ^ (folded >> 1)) & 1) << 7)


def _words(blocks: torch.Tensor, start: int, stop: int, dtype: torch.dtype) -> torch.Tensor:
    """Little-endian words [n, m] as int32, of 16 bits without their sign"""
    found = blocks[:, start:stop].contiguous().view(dtype).to(torch.int32)
    return found & 0xFFFF if dtype is torch.int16 else found


def _sevens(words: torch.Tensor) -> torch.Tensor:
    """Words [n, m] of 32 bits -> bits of signs [n, 4 * m]"""
    shifts = torch.arange(0, 28, 7, dtype=torch.int32, device=words.device)
    return _even((words.unsqueeze(2) >> shifts) & 127).flatten(1)


def iq2_xxs(blocks: torch.Tensor) -> Parts:
    words = _words(blocks, 2, 66, torch.int32).view(-1, 8, 2)[..., 1]
    index = blocks[:, 2:66].reshape(-1, 8, 8)[..., :4].flatten(1)
    scales = half(blocks, 0) * (0.5 + ((words >> 28) & 15)) * 0.25
    return scales, _entries("IQ2_XXS", index) * _signs(_sevens(words))


def _nibble_scales(blocks: torch.Tensor, start: int, stop: int) -> torch.Tensor:
    return shifted(blocks[:, start:stop].unsqueeze(2), 4, 2).flatten(1)


def iq2_xs(blocks: torch.Tensor) -> Parts:
    words = _words(blocks, 2, 66, torch.int16)
    scales = half(blocks, 0) * (0.5 + _nibble_scales(blocks, 66, 74)) * 0.25
    return scales, _entries("IQ2_XS", words & 511) * _signs(_even(words >> 9))


def iq2_s(blocks: torch.Tensor) -> Parts:
    high = shifted(blocks[:, 66:74].unsqueeze(2), 2, 2).flatten(1).int()
    index = blocks[:, 2:34].int() | (high << 8)
    scales = half(blocks, 0) * (0.5 + _nibble_scales(blocks, 74, 82)) * 0.25
    return scales, _entries("IQ2_S", index) * _signs(blocks[:, 34:66])


def iq3_xxs(blocks: torch.Tensor) -> Parts:
    words = _words(blocks, 66, 98, torch.int32)
    scales = half(blocks, 0) * (0.5 + ((words >> 28) & 15)) * 0.5
    values = _entries("IQ3_XXS", blocks[:, 2:66]).view(-1, 32, 8)
    return scales, values * _signs(_sevens(words))


def iq3_s(blocks: torch.Tensor) -> Parts:
    high = shifted(blocks[:, 66:74].unsqueeze(2), 1, 2).flatten(1).int()
    values = _entries("IQ3_S", blocks[:, 2:66].int() | (high << 8)).view(-1, 32, 8)
    scales = half(blocks, 0) * (1 + 2 * _nibble_scales(blocks, 106, 110))
    return scales, values * _signs(blocks[:, 74:106])


def iq1_s(blocks: torch.Tensor) -> Parts:
    words = _words(blocks, 34, 50, torch.int16)
    shifts = torch.arange(0, 12, 3, dtype=torch.int32, device=blocks.device)
    high = ((words.unsqueeze(2) >> shifts) & 7).flatten(1)
    delta = torch.where(words >> 15 == 0, _DELTA, -_DELTA).repeat_interleave(4, dim=1)
    values = _entries("IQ1_S", blocks[:, 2:34].int() | (high << 8)) + delta[:, :, None]
    return half(blocks, 0) * (2 * ((words >> 12) & 7) + 1), values


def iq1_m(blocks: torch.Tensor) -> Parts:
    """The scale of a block lies in four pieces, above those of its runs."""
    words = _words(blocks, 48, 56, torch.int16)
    pieces = (words >> 12) << torch.arange(0, 16, 4, dtype=torch.int32, device=blocks.device)
    scale = pieces.sum(dim=1, keepdim=True).to(torch.int16).view(torch.float16).float()
    shifts = torch.arange(0, 12, 3, dtype=torch.int32, device=blocks.device)
    runs = ((words.unsqueeze(2) >> shifts) & 7).flatten(1)
    high = _nibble_scales(blocks, 32, 48).int()
    delta = torch.where(high & 8 == 0, _DELTA, -_DELTA)
    values = _entries("IQ1_M", blocks[:, :32].int() | ((high & 7) << 8)) + delta[:, :, None]
    return scale * (2 * runs + 1), values

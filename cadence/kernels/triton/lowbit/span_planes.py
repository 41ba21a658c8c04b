"""Blocks of a file in the order in which kernels read them: of every span of 64 columns, words that turn into four
bytes by a mask and a shift.

four bits   of a span 32 bytes, as in `few_bits`: the two bytes j of 16 have columns j, 16 + j, 32 + j and 48 + j
two bits    of a span 16 bytes: byte j has the same columns, from the lowest bits up
one bit     of a span 8 bytes: byte 4i + k has places j = 4i + k in its low half and j = 8 + 4i + k in its high one, of
            each the four columns as above
bytes       of a span 64: word 8h + 4g + 2i + l has columns 32g + 16l + 8h + 4i and the three that follow

Codes of scales that a file has in six bits, or in pieces, take a byte each here; all other bits are those of the file.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from cadence.kernels.triton.lowbit.few_bits import SPAN, in_halves

Arrange = Callable[[torch.Tensor], torch.Tensor]  # [lines, bytes of blocks] uint8 -> [lines, bytes of new blocks]


def _runs(values: torch.Tensor) -> torch.Tensor:
    """[lines, cols] -> [lines, spans, 4, 16]"""
    return values.view(len(values), -1, 4, SPAN // 4)


def in_fours(values: torch.Tensor) -> torch.Tensor:
    """[lines, cols] of 0..15 -> [lines, cols / 2]"""
    return in_halves(values)


def in_twos(values: torch.Tensor) -> torch.Tensor:
    """[lines, cols] of 0..3 -> [lines, cols / 4]"""
    runs = _runs(values)
    return (runs[:, :, 0] | runs[:, :, 1] << 2 | runs[:, :, 2] << 4 | runs[:, :, 3] << 6).reshape(len(values), -1)


def in_ones(values: torch.Tensor) -> torch.Tensor:
    """[lines, cols] of 0 and 1 -> [lines, cols / 8]"""
    runs = _runs(values)
    fours = runs[:, :, 0] | runs[:, :, 1] << 1 | runs[:, :, 2] << 2 | runs[:, :, 3] << 3
    return (fours[..., :8] | fours[..., 8:] << 4).reshape(len(values), -1)


def in_bytes(values: torch.Tensor) -> torch.Tensor:
    """[lines, cols]: in another order"""
    by_place = values.view(len(values), -1, 2, 2, 2, 2, 4)  # span, g, l, h, i, k
    return by_place.permute(0, 1, 4, 2, 5, 3, 6).reshape(len(values), -1)


def _halves(block: torch.Tensor, size: int) -> torch.Tensor:
    """Of every `size` bytes the low halves, then the high ones, each a value."""
    lines = block.view(len(block), -1, size)
    return torch.cat([lines & 15, lines >> 4], dim=2).view(len(block), -1)


def _pieces(block: torch.Tensor, size: int, bits: int) -> torch.Tensor:
    """Of every `size` bytes the lowest bits of all, then the next, and so on."""
    lines = block.view(len(block), -1, size)
    places = range(0, 8, bits)
    return torch.cat([lines >> place & (1 << bits) - 1 for place in places], dim=2).view(len(block), -1)


def _bits_of_words(words: torch.Tensor) -> torch.Tensor:
    """[lines, 4 * n] -> [lines, 32 * n]: bit i of every four bytes"""
    places = torch.arange(8, dtype=torch.uint8, device=words.device)
    return (words.unsqueeze(2) >> places & 1).view(len(words), -1)


def _k_codes(packed: torch.Tensor) -> torch.Tensor:
    """Twelve bytes with eight pairs of six bits -> eight scales, then eight of what is subtracted."""
    first, second, third = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    scales = first & 63, third & 15 | first >> 6 << 4
    return torch.cat([*scales, second & 63, third >> 4 | second >> 6 << 4], dim=1)


def _q3_codes(packed: torch.Tensor) -> torch.Tensor:
    """Twelve bytes -> sixteen scales, each with a sign"""
    low = _halves(packed[:, :8].contiguous(), 8)
    return (low | _pieces(packed[:, 8:].contiguous(), 4, 2) << 4) - 32


def _q4_k(block: torch.Tensor) -> torch.Tensor:
    return torch.cat([in_fours(_halves(block[:, 16:].contiguous(), 32)), _k_codes(block[:, 4:16]), block[:, :4]], dim=1)


def _q5_k(block: torch.Tensor) -> torch.Tensor:
    low = _halves(block[:, 48:].contiguous(), 32)
    high = _pieces(block[:, 16:48].contiguous(), 32, 1)
    return torch.cat([in_fours(low), in_ones(high), _k_codes(block[:, 4:16]), block[:, :4]], dim=1)


def _q6_k(block: torch.Tensor) -> torch.Tensor:
    low = _halves(block[:, :128].contiguous(), 64)
    high = _pieces(block[:, 128:192].contiguous(), 32, 2)
    return torch.cat([in_fours(low), in_twos(high), block[:, 192:]], dim=1)


def _q2_k(block: torch.Tensor) -> torch.Tensor:
    return torch.cat([in_twos(_pieces(block[:, 16:80].contiguous(), 32, 2)), block[:, :16], block[:, 80:]], dim=1)


def _q3_k(block: torch.Tensor) -> torch.Tensor:
    low = _pieces(block[:, 32:96].contiguous(), 32, 2)
    high = _pieces(block[:, :32].contiguous(), 32, 1)
    return torch.cat([in_twos(low), in_ones(high), _q3_codes(block[:, 96:108]), block[:, 108:]], dim=1)


def _iq4_xs(block: torch.Tensor) -> torch.Tensor:
    high = torch.cat([block[:, 2 + part // 4 : 3 + part // 4] >> part % 4 * 2 & 3 for part in range(8)], dim=1)
    low = torch.stack([block[:, 4:8] & 15, block[:, 4:8] >> 4], dim=2).view(len(block), 8)
    values = in_fours(_halves(block[:, 8:].contiguous(), 16))
    return torch.cat([values, (low | high << 4) - 32, block[:, :2]], dim=1)


def _pair(block: torch.Tensor, start: int, stop: int) -> torch.Tensor:
    """Of two blocks side by side the same bytes."""
    return block.view(len(block), 2, -1)[:, :, start:stop].reshape(len(block), -1)


def _q5_0(block: torch.Tensor) -> torch.Tensor:
    low, high = _halves(_pair(block, 6, 22), 16), _bits_of_words(_pair(block, 2, 6))
    return torch.cat([in_fours(low), in_ones(high), _pair(block, 0, 2)], dim=1)


def _q5_1(block: torch.Tensor) -> torch.Tensor:
    low, high = _halves(_pair(block, 8, 24), 16), _bits_of_words(_pair(block, 4, 8))
    return torch.cat([in_fours(low), in_ones(high), _pair(block, 0, 2), _pair(block, 2, 4)], dim=1)


def _q8_0(block: torch.Tensor) -> torch.Tensor:
    return torch.cat([in_bytes(_pair(block, 2, 34)), _pair(block, 0, 2)], dim=1)


def _iq4_nl(block: torch.Tensor) -> torch.Tensor:
    return torch.cat([in_fours(_halves(_pair(block, 2, 18), 16)), _pair(block, 0, 2)], dim=1)


def _mxfp4(block: torch.Tensor) -> torch.Tensor:
    return torch.cat([in_fours(_halves(_pair(block, 1, 17), 16)), _pair(block, 0, 1)], dim=1)


def _nvfp4(block: torch.Tensor) -> torch.Tensor:
    return torch.cat([in_fours(_halves(block[:, 4:].contiguous(), 8)), block[:, :4]], dim=1)


ARRANGED: dict[str, Arrange] = {
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
    "Q2_K": _q2_k,
    "Q3_K": _q3_k,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q8_0": _q8_0,
    "IQ4_NL": _iq4_nl,
    "IQ4_XS": _iq4_xs,
    "MXFP4": _mxfp4,
    "NVFP4": _nvfp4,
}

"""Small unsigned integers side by side in words, the first in the lowest bits."""

from __future__ import annotations

import torch


def unpacked(words: torch.Tensor, bits: int) -> torch.Tensor:
    """words [..., n] of integers -> [..., n * word bits / bits] uint8; bits: 2, 4 or 8"""
    data = words.contiguous().view(torch.uint8)
    if bits == 8:
        return data
    shifts = range(0, 8, bits)
    mask = (1 << bits) - 1
    out = torch.empty((*data.shape, len(shifts)), dtype=torch.uint8)
    for index, shift in enumerate(shifts):
        torch.bitwise_and(data >> shift, mask, out=out[..., index])
    return out.flatten(-2)


def num_words(count: int, bits: int) -> int:
    """int32 words that hold so many integers."""
    return -(-count * bits // 32)


def packed(numbers: torch.Tensor, bits: int) -> torch.Tensor:
    """numbers [..., n] uint8, each below 2^bits; bits: 2, 4 or 8 -> int32 words [..., num_words(n, bits)]"""
    count, per_byte = numbers.shape[-1], 8 // bits
    padded = torch.nn.functional.pad(numbers, (0, num_words(count, bits) * 4 * per_byte - count))
    runs = padded.unflatten(-1, (-1, per_byte))
    data = torch.zeros(runs.shape[:-1], dtype=torch.uint8)
    for index in range(per_byte):
        data |= runs[..., index] << (bits * index)
    return data.contiguous().view(torch.int32)

"""Blocks by the name of their kind: those of GGUF, and those of `blocks.py`."""

from __future__ import annotations

import math

import torch

from cadence import gguf
from cadence.models.quant.blocks import BLOCK, NEAR_TABLES, TABLE_BLOCK

_OWN = {  # (values, bytes) of a block
    "Q4_Z": (BLOCK, 20),
    "Q8_Z": (BLOCK, 36),
    "Q8_F": (BLOCK, 36),
    "T4_F": (BLOCK, 40),
    "F8": (BLOCK, 36),
    "NF4": (TABLE_BLOCK, 36),
    "FP4": (TABLE_BLOCK, 36),
}


def block_size(kind: str) -> tuple[int, int]:
    """(values, bytes) of a block"""
    return _OWN[kind] if kind in _OWN else gguf.block_size(kind)


def num_block_bytes(kind: str, shape: tuple[int, ...]) -> int:
    """Of a tensor; 0 of kinds that are not known"""
    if kind not in _OWN:
        return gguf.num_block_bytes(kind, shape)
    values, num_bytes = _OWN[kind]
    return math.prod(shape) // values * num_bytes


def values_of_blocks(kind: str, raw: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    """raw [bytes] uint8 -> [shape] float32"""
    if kind not in _OWN:
        return gguf.values_of_blocks(kind, raw, shape)
    blocks = raw.view(-1, _OWN[kind][1])
    if kind == "Q8_F":
        scale = blocks[:, :4].contiguous().view(torch.float32)
        return (blocks[:, 4:].view(torch.int8) * scale).view(shape)
    if kind == "F8":
        numbers = blocks[:, 4:].contiguous().view(torch.float8_e4m3fn).float()
        return (numbers * blocks[:, :4].contiguous().view(torch.float32)).view(shape)
    if kind == "T4_F":
        codes = torch.stack([blocks[:, 24:] & 15, blocks[:, 24:] >> 4], dim=1)
        table = blocks[:1, :16].contiguous().view(torch.int8).view(-1)
        scales = blocks[:, 16:24].contiguous().view(torch.float32)
        return (table[codes.int()] * scales[..., None]).view(shape)
    if kind in NEAR_TABLES:
        halves = blocks[:, 4:].reshape(-1, 2, 1, BLOCK // 2)
        codes = torch.cat([halves & 15, halves >> 4], dim=2).reshape(-1, TABLE_BLOCK)
        numbers = torch.tensor(NEAR_TABLES[kind])
        return (numbers[codes.int()] * (blocks[:, :4].contiguous().view(torch.float32) / numbers.max())).view(shape)
    header = blocks[:, :4].contiguous().view(torch.float16).float()
    if kind == "Q8_Z":
        return ((blocks[:, 4:].view(torch.int8) - header[:, 1:]) * header[:, :1]).view(shape)
    quants = torch.cat([blocks[:, 4:] & 15, blocks[:, 4:] >> 4], dim=1).float()
    return ((quants - header[:, 1:]) * header[:, :1]).view(shape)

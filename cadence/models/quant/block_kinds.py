"""Blocks by the name of their kind: those of GGUF, and those of `blocks.py`."""

from __future__ import annotations

import math

import torch

from cadence import gguf
from cadence.models.quant.blocks import BLOCK

_OWN = {"Q4_Z": 20, "Q8_F": 36, "T4_F": 40, "F8": 36}  # bytes of a block


def block_size(kind: str) -> tuple[int, int]:
    """(values, bytes) of a block"""
    return (BLOCK, _OWN[kind]) if kind in _OWN else gguf.block_size(kind)


def num_block_bytes(kind: str, shape: tuple[int, ...]) -> int:
    """Of a tensor; 0 of kinds that are not known"""
    return math.prod(shape) // BLOCK * _OWN[kind] if kind in _OWN else gguf.num_block_bytes(kind, shape)


def values_of_blocks(kind: str, raw: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    """raw [bytes] uint8 -> [shape] float32"""
    if kind not in _OWN:
        return gguf.values_of_blocks(kind, raw, shape)
    blocks = raw.view(-1, _OWN[kind])
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
    header = blocks[:, :4].contiguous().view(torch.float16).float()
    quants = torch.cat([blocks[:, 4:] & 15, blocks[:, 4:] >> 4], dim=1).float()
    return ((quants - header[:, 1:]) * header[:, :1]).view(shape)

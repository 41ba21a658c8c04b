"""GGUF types that no kernel of a CPU multiplies: the same numbers in blocks that one does, in some more bits.

| type | becomes |
|---|---|
| TQ1_0, TQ2_0 | Q4_0 |
| Q3_K, NVFP4, IQ1, IQ2, IQ3 | T4_F: none of them has more than sixteen different numbers beside its scales |
"""

from __future__ import annotations

import torch

from cadence import gguf
from cadence.core.block_grids import FP4_VALUES, block_grid
from cadence.models.quant.blocks import code_blocks, integer_blocks
from cadence.models.quant.matrix import Blocks

_CHUNK = 1 << 22  # elements at once; bounds temporaries
_THREE = ("TQ1_0", "TQ2_0")  # -1, 0 and 1
_EIGHTHS = ("IQ1_S", "IQ1_M")  # whole numbers and an eighth more or less
_GRIDS = ("IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S")


def wider_blocks(kind: str, raw: torch.Tensor, rows: int, cols: int) -> Blocks | None:
    """raw [bytes] uint8: blocks of rows x cols -> exactly their values in another kind, or None."""
    if kind not in (*_THREE, *_EIGHTHS, *_GRIDS, "Q3_K", "NVFP4") or raw.numel() != gguf.num_block_bytes(
        kind, (rows, cols)
    ):
        return None
    by_row = raw.view(rows, -1)
    step = max(1, _CHUNK // cols)
    found = [_wider(kind, by_row[start : start + step], cols) for start in range(0, rows, step)]
    made = [blocks for blocks in found if blocks is not None]
    return (made[0][0], torch.cat([data for _, data in made])) if len(made) == len(found) else None


def _wider(kind: str, some: torch.Tensor, cols: int) -> Blocks | None:
    """some [rows, bytes]"""
    parts = gguf.parts_of_blocks(kind, some.reshape(-1))
    if parts is None:
        return None
    scales, numbers = parts[0].reshape(some.shape[0], -1), parts[1].reshape(some.shape[0], cols)
    if kind in _THREE:
        return integer_blocks((numbers + 8).to(torch.uint8), 4, 8, scales)
    if kind in _EIGHTHS:
        scales, numbers = scales / 8, numbers * 8
    table = _table(kind)
    places = torch.zeros(256, dtype=torch.uint8)
    for code, number in enumerate(table):
        places[number + 128] = code
    return code_blocks(places[(numbers + 128).int()], table, scales)


def _table(kind: str) -> tuple[int, ...]:
    """The numbers of a type, sixteen of them"""
    if kind == "NVFP4":
        return FP4_VALUES
    if kind == "Q3_K":
        return tuple(range(-8, 8))
    sizes = {1, 7, 9} if kind in _EIGHTHS else set(abs(block_grid(kind)).flatten().tolist())
    found = sorted({sign * size for size in sizes for sign in (-1, 1)})
    return (*found, *[0] * (16 - len(found)))

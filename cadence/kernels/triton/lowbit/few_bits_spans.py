"""Products of several rows with matrices of four bits that have a scale for 32 or 64 columns: by the kernel for planes
of words, which scales numbers before their product. (`few_bits_wide` scales sums, of which there would be many.)"""

from __future__ import annotations

from typing import Any

import torch

from cadence.kernels.triton.common.private import is_interpreted
from cadence.kernels.triton.linear.few_rows import FewTile
from cadence.kernels.triton.lowbit import span_decoders as spans
from cadence.kernels.triton.lowbit import span_tiles as tiles
from cadence.kernels.triton.lowbit.few_bits import SPAN, Stored
from cadence.kernels.triton.lowbit.span_launch import choose_spans, product_of_tiles

_MIDDLE = 8  # stands for 0 where a matrix has no zeros of its own
_BLOCK = 256  # columns whose scales a thread takes at once


def goes_by_spans(weight: Stored) -> bool:
    return weight.is_four and weight.group in (32, 64) and weight.scales.is_contiguous()


def choose_small_groups(rows: int, weight: Stored, dtype: torch.dtype, most_terms: int) -> FewTile:
    return choose_spans(rows, weight.rows, True, dtype, most_terms, weight.cols)


def linear_spans(x: torch.Tensor, weight: Stored, bias: torch.Tensor | None, pdl: bool, tile: FewTile) -> torch.Tensor:
    """x [T, in] -> [T, out]; a tile with terms: [terms, T, out], which are to be added up."""
    has_zeros, has_table = len(weight.zeros) > 0, weight.table.exists
    planes = [
        weight.values,
        weight.table.words if has_table else weight.values,
        weight.scales,
        weight.zeros if has_zeros else weight.scales,
    ]
    return product_of_tiles(x, planes, _constants(weight, x.dtype), bias, tile, pdl)


def _constants(weight: Stored, dtype: torch.dtype) -> dict[str, Any]:
    """dtype: of x; with float32 a table's own numbers are read, which are looked up in float16 else"""
    has_zeros, has_table = len(weight.zeros) > 0, weight.table.exists
    quick = not is_interpreted() and not (has_table and dtype is torch.float32)
    lift = 0 if has_table else (tiles.LIFT if quick else 0) + (0 if has_zeros else _MIDDLE)
    block = _BLOCK if weight.cols % _BLOCK == 0 else SPAN
    return {
        "WIDTH": weight.cols, "GROUP": weight.group, "GROUPS": block // weight.group, "SHIFTS": has_zeros,
        "SCALES": spans.scales_zeros if has_zeros else spans.scales_plain, "QUICK": quick, "LIFT": lift,
        "TILES": tiles.tiles_codes if has_table else tiles.tiles_four, "NUMBERS": tiles.numbers_four,
        "LOOKUP": weight.table.lookup(torch.float16) if has_table else "",
    }  # fmt: skip

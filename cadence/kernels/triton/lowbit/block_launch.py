"""Which decoders and tiles kernels take for a matrix of blocks that is not in planes of words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton

from cadence.kernels.interface.ops import Pair
from cadence.kernels.triton.linear.few_rows import FewTile, in_terms
from cadence.kernels.triton.linear.gemv import Entry, room_for
from cadence.kernels.triton.lowbit import block_decoders as blocks
from cadence.kernels.triton.lowbit import grid_decoders as grids
from cadence.kernels.triton.lowbit.block_planes import Planes
from cadence.kernels.triton.lowbit.block_products import block_gemv, block_rows, block_values

_MOST_ROWS = 64
_PROCESSORS = 132  # of the GPU the choices were made for
_COLUMNS = 128  # a step of `block_rows`
_GEMV_COLUMNS, _GEMV_ROWS = 1024, 4

_DECODERS: dict[str, tuple[Any, Any]] = {
    "TQ1_0": (blocks.tq1_0, blocks.one_scale),
    "TQ2_0": (blocks.tq2_0, blocks.one_scale),
    "IQ2_XXS": (grids.iq2_xxs, grids.iq2_xxs_scales),
    "IQ2_XS": (grids.iq2_xs, grids.iq2_xs_scales),
    "IQ2_S": (grids.iq2_s, grids.iq2_s_scales),
    "IQ3_XXS": (grids.iq3_xxs, grids.iq3_xxs_scales),
    "IQ3_S": (grids.iq3_s, grids.iq3_s_scales),
    "IQ1_S": (grids.iq1_s, grids.iq1_s_scales),
    "IQ1_M": (grids.iq1_m, grids.iq1_m_scales),
    "BYTES": (blocks.bytes_of_128, blocks.one_scale),
}


def constants(weight: Planes) -> dict[str, Any]:
    """What kernels must know of a type."""
    numbers, scales = _DECODERS[weight.kind]
    form = weight.form
    return {
        "WIDTH": weight.cols, "BLOCK": form.block, "GROUP": form.group, "SHIFTS": form.shifts,
        "NUMBERS": numbers, "SCALES": scales,
    }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Blocks:
    """`BlockProducts` by `block_products`."""

    weight: Planes

    @property
    def most_rows(self) -> int:
        return _MOST_ROWS

    @property
    def splits_alone(self) -> bool:
        return False

    def suits_row(self, dtype: torch.dtype) -> bool:
        return True

    def rows_of(self, first: int, count: int) -> Blocks:
        return Blocks(self.weight.rows_of(first, count))

    def values(self, dtype: torch.dtype, ids: torch.Tensor | None = None, factor: float = 1.0) -> torch.Tensor:
        """[rows, cols], or of the rows `ids` [T], times a factor: [T, cols]"""
        weight = self.weight
        out = weight.room(dtype, ids)
        columns = min(2048, triton.next_power_of_2(weight.cols))
        block_values[(out.shape[0], triton.cdiv(weight.cols, columns))](
            out, weight.planes[0] if ids is None else ids, *weight.four, weight.table, float(factor),
            **constants(weight), COLUMNS=columns, PICKED=ids is not None, num_warps=4,
        )  # fmt: skip
        return out

    def one_row(self, x: torch.Tensor, bias: torch.Tensor | None, entry: Entry | None, gate: str, pdl: bool) -> Pair:
        """x [1, in] -> (out [1, rows], or half of that with a gate, and x + residual)."""
        x, weight = x.contiguous(), self.weight
        out, total, residual, norm, eps = room_for(x, weight.rows, entry, gate)
        outputs = out.shape[1]
        columns = min(_GEMV_COLUMNS, triton.next_power_of_2(weight.cols))
        block_gemv[(triton.cdiv(outputs, _GEMV_ROWS // 2 if gate else _GEMV_ROWS),)](
            out, total, x, residual, norm, *weight.four, weight.table, x if bias is None else bias, eps, outputs,
            **constants(weight), ROWS=_GEMV_ROWS, COLUMNS=columns, NORM=entry is not None, GATE=gate,
            BIAS=bias is not None, PDL=pdl, num_warps=4, launch_pdl=pdl,
        )  # fmt: skip
        return out, total

    def choose(self, rows: int, dtype: torch.dtype, most_terms: int) -> FewTile:
        weight = self.weight
        tall = 16 if rows <= 16 else 32 if rows <= 32 else 64
        outputs = 64 if weight.rows >= 64 * _PROCESSORS else 32
        return in_terms(FewTile(tall, outputs, _COLUMNS, 4, 2), rows, weight.rows, weight.cols, most_terms)

    def some_rows(self, x: torch.Tensor, bias: torch.Tensor | None, tile: FewTile, pdl: bool) -> torch.Tensor:
        """x [T, in] -> [T, out], or [terms, T, out], which are to be added up"""
        weight = self.weight
        x = x if x.stride(1) == 1 else x.contiguous()
        rows, outputs = x.shape[0], weight.rows
        out = tile.room(rows, outputs, x.dtype, x.device)
        block_rows[tile.grid(rows, outputs)](
            out, x, *weight.four, weight.table, x if bias is None else bias, rows, outputs, x.stride(0),
            **constants(weight), ROWS=tile.rows, OUTPUTS=tile.outputs, COLUMNS=tile.columns, TERMS=tile.terms,
            EVEN=weight.cols % (tile.terms * tile.columns) == 0, BIAS=bias is not None,
            PRECISION="ieee" if x.dtype is torch.float32 else "tf32", PDL=pdl,
            num_warps=tile.warps, num_stages=tile.stages, launch_pdl=pdl,
        )  # fmt: skip
        return out

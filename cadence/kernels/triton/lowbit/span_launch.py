"""Which decoders and tiles kernels take for a matrix in planes of words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton

from cadence.kernels.interface.ops import Pair
from cadence.kernels.triton.common.private import is_interpreted
from cadence.kernels.triton.linear.few_rows import FewTile, in_terms
from cadence.kernels.triton.linear.gemv import Entry, room_for
from cadence.kernels.triton.lowbit import span_decoders as spans
from cadence.kernels.triton.lowbit import span_tiles as tiles
from cadence.kernels.triton.lowbit.block_planes import Planes
from cadence.kernels.triton.lowbit.few_bits import SPAN
from cadence.kernels.triton.lowbit.few_bits_gemv import OneTile
from cadence.kernels.triton.lowbit.few_bits_wide import MANY_OUTPUTS
from cadence.kernels.triton.lowbit.span_gemv import span_gemv
from cadence.kernels.triton.lowbit.span_products import span_rows, span_values
from cadence.kernels.triton.lowbit.span_tiles import LIFT

_MOST_ROWS, _MOST_TALL = 64, 128  # for more a library multiplies by the widened matrix; _TALL: of many outputs
_BLOCK = 256  # columns whose scales a thread takes at once
_WIDENED, _LINES = 2048, 4  # columns that a warp widens, of so many rows


@dataclass(frozen=True, slots=True)
class SpanNumbers:
    """How planes become numbers."""

    load: Any  # for one row (`span_decoders`)
    values: Any
    tiles: Any  # for several (`span_tiles`)
    numbers: Any
    lift: int = LIFT  # how much too large `numbers` are where a GPU makes them
    signed: bool = False


@dataclass(frozen=True, slots=True)
class SpanKind:
    """How a type's planes become products."""

    made: SpanNumbers
    scales: Any
    planes: tuple[int, int, int, int]  # which of a matrix are `a` to `d` of these functions
    zero: int = 0  # what stands for 0


_TWO = SpanNumbers(spans.load_two, spans.values_two, tiles.tiles_two, tiles.numbers_two)
_THREE = SpanNumbers(spans.load_two_one, spans.values_three, tiles.tiles_two_one, tiles.numbers_three)
_FOUR = SpanNumbers(spans.load_four, spans.values_four, tiles.tiles_four, tiles.numbers_four)
_FIVE = SpanNumbers(spans.load_four_one, spans.values_five, tiles.tiles_four_one, tiles.numbers_five)
_SIX = SpanNumbers(spans.load_four_two, spans.values_six, tiles.tiles_four_two, tiles.numbers_six)
_EIGHT = SpanNumbers(spans.load_bytes, spans.values_eight, tiles.tiles_bytes, tiles.numbers_eight, 0, True)
_IQ4 = SpanNumbers(spans.load_four, spans.values_iq4, tiles.tiles_four, tiles.numbers_iq4, 0, True)
_FP4 = SpanNumbers(spans.load_four, spans.values_fp4, tiles.tiles_four, tiles.numbers_fp4, 0, True)

KINDS: dict[str, SpanKind] = {
    "Q4_K": SpanKind(_FOUR, spans.scales_k, (0, 0, 1, 2)),
    "Q5_K": SpanKind(_FIVE, spans.scales_k, (0, 1, 2, 3)),
    "Q6_K": SpanKind(_SIX, spans.scales_coded, (0, 1, 2, 3), zero=32),
    "Q2_K": SpanKind(_TWO, spans.scales_q2_k, (0, 0, 1, 2)),
    "Q3_K": SpanKind(_THREE, spans.scales_coded, (0, 1, 2, 3), zero=4),
    "Q5_0": SpanKind(_FIVE, spans.scales_plain, (0, 1, 2, 2), zero=16),
    "Q5_1": SpanKind(_FIVE, spans.scales_least, (0, 1, 2, 3)),
    "Q8_0": SpanKind(_EIGHT, spans.scales_plain, (0, 0, 1, 1)),
    "IQ4_NL": SpanKind(_IQ4, spans.scales_plain, (0, 0, 1, 1)),
    "IQ4_XS": SpanKind(_IQ4, spans.scales_coded, (0, 0, 1, 2)),
    "MXFP4": SpanKind(_FP4, spans.scales_e8m0, (0, 0, 1, 1)),
    "NVFP4": SpanKind(_FP4, spans.scales_e4m3, (0, 0, 1, 1)),
    "FP4_16": SpanKind(_FP4, spans.scales_plain, (0, 0, 1, 1)),
    "FP4_32": SpanKind(_FP4, spans.scales_plain, (0, 0, 1, 1)),
}


def choose_span(width: int) -> OneTile:
    """A guess from counts of instructions: a thread takes 64 columns, and x is made into numbers once for 16 rows."""
    return OneTile(4, 4096, 4) if width <= 4096 else OneTile(4, 16384, 2)


def choose_spans(rows: int, outputs: int, has_four: bool, dtype: torch.dtype, most_terms: int, cols: int) -> FewTile:
    """What was fastest on an H200 for several rows of x. has_four: bits of a number, and no others in a plane apart"""
    return in_terms(_whole_spans(rows, outputs, has_four, dtype), rows, outputs, cols, most_terms)


def _whole_spans(rows: int, outputs: int, has_four: bool, dtype: torch.dtype) -> FewTile:
    if dtype is torch.float32:  # of which less fits
        return FewTile(16 if rows <= 16 else 32, 32, _BLOCK, 4, 2)
    tall = 16 if rows <= 16 else 32 if rows <= 32 else 64 if rows <= 64 else 128
    if outputs < MANY_OUTPUTS:
        return FewTile(min(tall, 64), 64, _BLOCK, 4, 3)
    if tall <= 32:
        return FewTile(tall, 128 if has_four else 64, _BLOCK, 4, 3)
    if tall == 64:
        return FewTile(tall, 256 if has_four else 128, _BLOCK, 8, 3)
    return FewTile(tall, 128, _BLOCK, 8, 2)


def planes_of_spans(weight: Planes) -> list[torch.Tensor]:
    return [weight.planes[place] for place in KINDS[weight.kind].planes]


def _common_constants(weight: Planes) -> dict[str, Any]:
    group = weight.form.group
    block = _BLOCK if weight.cols % _BLOCK == 0 else SPAN
    return {
        "WIDTH": weight.cols, "GROUP": group, "GROUPS": block // group, "SHIFTS": weight.form.shifts,
        "SCALES": KINDS[weight.kind].scales, "QUICK": not is_interpreted(),
    }  # fmt: skip


def span_constants(weight: Planes) -> dict[str, Any]:
    """What the kernel for one row must know of a type."""
    kind = KINDS[weight.kind]
    own = {"ZERO": kind.zero, "SIGNED": kind.made.signed, "LOAD": kind.made.load, "VALUES": kind.made.values}
    return _common_constants(weight) | own


def tile_constants(weight: Planes) -> dict[str, Any]:
    """What kernels for several rows must know of a type."""
    kind = KINDS[weight.kind]
    lift = kind.zero if is_interpreted() else kind.zero + kind.made.lift
    return _common_constants(weight) | {
        "TILES": kind.made.tiles,
        "NUMBERS": kind.made.numbers,
        "LIFT": lift,
        "LOOKUP": "",
    }


def product_of_tiles(
    x: torch.Tensor,
    planes: list[torch.Tensor],
    constants: dict[str, Any],
    bias: torch.Tensor | None,
    tile: FewTile,
    pdl: bool,
) -> torch.Tensor:
    """planes: four of [out, ...]"""
    x = x if x.stride(1) == 1 else x.contiguous()
    rows, outputs = x.shape[0], planes[0].shape[0]
    out = tile.room(rows, outputs, x.dtype, x.device)
    span_rows[tile.grid(rows, outputs)](
        out, x, *planes, x if bias is None else bias, rows, outputs, x.stride(0),
        **constants, SPANS=tile.columns // SPAN, ROWS=tile.rows, OUTPUTS=tile.outputs, TERMS=tile.terms,
        EVEN=outputs % tile.outputs == 0 and x.shape[1] % (tile.terms * tile.columns) == 0,
        BIAS=bias is not None, PRECISION="ieee" if x.dtype is torch.float32 else "tf32", PDL=pdl,
        num_warps=tile.warps, num_stages=tile.stages, launch_pdl=pdl,
    )  # fmt: skip
    return out


@dataclass(frozen=True, slots=True)
class Spans:
    """`BlockProducts` by `span_gemv` and `span_products`."""

    weight: Planes

    @property
    def most_rows(self) -> int:
        return _MOST_TALL if self.weight.rows >= MANY_OUTPUTS else _MOST_ROWS

    @property
    def splits_alone(self) -> bool:
        return True

    def suits_row(self, dtype: torch.dtype) -> bool:
        """Compiled for an H200, the kernel for one row is right with numbers of 16 bits alone."""
        return dtype.itemsize == 2

    def rows_of(self, first: int, count: int) -> Spans:
        return Spans(self.weight.rows_of(first, count))

    def values(self, dtype: torch.dtype, ids: torch.Tensor | None = None, factor: float = 1.0) -> torch.Tensor:
        """[rows, cols], or of the rows `ids` [T], times a factor: [T, cols]"""
        weight = self.weight
        out = weight.room(dtype, ids)
        rows = out.shape[0]
        count = max(min(_WIDENED, triton.next_power_of_2(weight.cols)), _BLOCK) // SPAN
        span_values[(triton.cdiv(rows, _LINES), triton.cdiv(weight.cols, count * SPAN))](
            out, weight.planes[0] if ids is None else ids, *planes_of_spans(weight), float(factor), rows,
            **tile_constants(weight), ROWS=_LINES, SPANS=count, PICKED=ids is not None, num_warps=max(count // 32, 1),
        )  # fmt: skip
        return out

    def choose(self, rows: int, dtype: torch.dtype, most_terms: int) -> FewTile:
        has_four = KINDS[self.weight.kind].made.tiles is tiles.tiles_four
        return choose_spans(rows, self.weight.rows, has_four, dtype, most_terms, self.weight.cols)

    def some_rows(self, x: torch.Tensor, bias: torch.Tensor | None, tile: FewTile, pdl: bool) -> torch.Tensor:
        """x [T, in] -> [T, out], or [terms, T, out], which are to be added up"""
        return product_of_tiles(x, planes_of_spans(self.weight), tile_constants(self.weight), bias, tile, pdl)

    def one_row(
        self,
        x: torch.Tensor,
        bias: torch.Tensor | None,
        entry: Entry | None,
        gate: str,
        pdl: bool,
        tile: OneTile | None = None,
    ) -> Pair:
        """x [1, in] -> (out [1, rows], or half of that with a gate, and x + residual)."""
        x, weight, width = x.contiguous(), self.weight, self.weight.cols
        out, total, residual, norm, eps = room_for(x, weight.rows, entry, gate)
        outputs = out.shape[1]
        tile = tile or choose_span(width)
        count = max(min(tile.columns, triton.next_power_of_2(width)), _BLOCK) // SPAN
        parts = tile.parts if SPAN * count >= width else 1
        taken = parts * (tile.rows // 2 if gate else tile.rows)
        span_gemv[(triton.cdiv(outputs, taken),)](
            out, total, x, residual, norm, *planes_of_spans(weight), x if bias is None else bias, eps, outputs,
            **span_constants(weight), PARTS=parts, ROWS=tile.rows, SPANS=count, NORM=entry is not None, GATE=gate,
            BIAS=bias is not None, PDL=pdl, num_warps=max(count // 32, 1), launch_pdl=pdl,
        )  # fmt: skip
        return out, total

"""Which decoders and tiles kernels take for a matrix in planes of words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton

from cadence.kernels.interface.ops import Pair
from cadence.kernels.triton import span_decoders as spans
from cadence.kernels.triton.block_planes import Planes
from cadence.kernels.triton.few_bits import SPAN
from cadence.kernels.triton.few_bits_gemv import OneTile
from cadence.kernels.triton.few_rows import FewTile
from cadence.kernels.triton.gemv import Entry
from cadence.kernels.triton.private import is_interpreted
from cadence.kernels.triton.span_gemv import span_gemv
from cadence.kernels.triton.span_products import span_rows, span_values

_BLOCK = 256  # columns whose scales a thread takes at once
_WIDENED, _LINES = 2048, 4  # columns that a warp widens, of so many rows


@dataclass(frozen=True, slots=True)
class SpanKind:
    """How a type's planes become products."""

    load: Any
    values: Any
    scales: Any
    planes: tuple[int, int, int, int]  # which of a matrix are `a` to `d` of these functions
    zero: int = 0  # what stands for 0
    signed: bool = False


KINDS: dict[str, SpanKind] = {
    "Q4_K": SpanKind(spans.load_four, spans.values_four, spans.scales_k, (0, 0, 1, 2)),
    "Q5_K": SpanKind(spans.load_four_one, spans.values_five, spans.scales_k, (0, 1, 2, 3)),
    "Q6_K": SpanKind(spans.load_four_two, spans.values_six, spans.scales_16, (0, 1, 2, 3), zero=32),
    "Q2_K": SpanKind(spans.load_two, spans.values_two, spans.scales_q2_k, (0, 0, 1, 2)),
    "Q3_K": SpanKind(spans.load_two_one, spans.values_three, spans.scales_16, (0, 1, 2, 3), zero=4),
    "Q5_0": SpanKind(spans.load_four_one, spans.values_five, spans.scales_of_32, (0, 1, 2, 2), zero=16),
    "Q5_1": SpanKind(spans.load_four_one, spans.values_five, spans.scales_least, (0, 1, 2, 3)),
    "Q8_0": SpanKind(spans.load_bytes, spans.values_eight, spans.scales_of_32, (0, 0, 1, 1), signed=True),
    "IQ4_NL": SpanKind(spans.load_four, spans.values_iq4, spans.scales_of_32, (0, 0, 1, 1), signed=True),
    "IQ4_XS": SpanKind(spans.load_four, spans.values_iq4, spans.scales_8, (0, 0, 1, 2), signed=True),
    "MXFP4": SpanKind(spans.load_four, spans.values_fp4, spans.scales_e8m0, (0, 0, 1, 1), signed=True),
    "NVFP4": SpanKind(spans.load_four, spans.values_fp4, spans.scales_e4m3, (0, 0, 1, 1), signed=True),
    "FP4_16": SpanKind(spans.load_four, spans.values_fp4, spans.scales_of_16, (0, 0, 1, 1), signed=True),
    "FP4_32": SpanKind(spans.load_four, spans.values_fp4, spans.scales_of_32, (0, 0, 1, 1), signed=True),
}


def choose_span(width: int) -> OneTile:
    """A guess from counts of instructions: a thread takes 64 columns, and x is made into numbers once for 16 rows."""
    return OneTile(4, 4096, 4) if width <= 4096 else OneTile(4, 16384, 2)


def planes_of_spans(weight: Planes) -> list[torch.Tensor]:
    return [weight.planes[place] for place in KINDS[weight.kind].planes]


def span_constants(weight: Planes) -> dict[str, Any]:
    """What kernels must know of a type."""
    kind, group = KINDS[weight.kind], weight.form.group
    block = _BLOCK if weight.cols % _BLOCK == 0 else SPAN
    return {
        "WIDTH": weight.cols, "GROUP": group, "GROUPS": block // group, "ZERO": kind.zero, "SIGNED": kind.signed,
        "SHIFTS": weight.form.shifts, "LOAD": kind.load, "VALUES": kind.values, "SCALES": kind.scales,
        "QUICK": not is_interpreted(),
    }  # fmt: skip


def widened_spans(
    weight: Planes, dtype: torch.dtype, ids: torch.Tensor | None = None, factor: float = 1.0
) -> torch.Tensor:
    """[rows, cols], or of the rows `ids` [T], times a factor: [T, cols]"""
    first = weight.planes[0]
    rows = weight.rows if ids is None else ids.shape[0]
    out = torch.empty((rows, weight.cols), dtype=dtype, device=first.device)
    count = max(min(_WIDENED, triton.next_power_of_2(weight.cols)), _BLOCK) // SPAN
    span_values[(triton.cdiv(rows, _LINES), triton.cdiv(weight.cols, count * SPAN))](
        out, first if ids is None else ids, *planes_of_spans(weight), float(factor), rows,
        **span_constants(weight), ROWS=_LINES, SPANS=count, PICKED=ids is not None, num_warps=max(count // 32, 1),
    )  # fmt: skip
    return out


def some_spans(x: torch.Tensor, weight: Planes, bias: torch.Tensor | None, tile: FewTile, pdl: bool) -> torch.Tensor:
    """x [T, in] -> [T, out], or [terms, T, out], which are to be added up"""
    x = x if x.stride(1) == 1 else x.contiguous()
    rows, outputs = x.shape[0], weight.rows
    size = (rows, outputs) if tile.terms == 1 else (tile.terms, rows, outputs)
    out = torch.empty(size, dtype=x.dtype, device=x.device)
    span_rows[(triton.cdiv(outputs, tile.outputs), triton.cdiv(rows, tile.rows), tile.terms)](
        out, x, *planes_of_spans(weight), x if bias is None else bias, rows, outputs, x.stride(0),
        **span_constants(weight), SPANS=tile.columns // SPAN, ROWS=tile.rows, OUTPUTS=tile.outputs, TERMS=tile.terms,
        BIAS=bias is not None, PRECISION="ieee" if x.dtype is torch.float32 else "tf32", PDL=pdl,
        num_warps=tile.warps, num_stages=tile.stages, launch_pdl=pdl,
    )  # fmt: skip
    return out


def span_row(
    x: torch.Tensor,
    weight: Planes,
    bias: torch.Tensor | None,
    entry: Entry | None,
    gate: str,
    pdl: bool,
    tile: OneTile | None = None,
) -> Pair:
    """x [1, in] -> (out [1, rows], or half of that with a gate, and x + residual)."""
    x, width = x.contiguous(), weight.cols
    outputs = weight.rows // 2 if gate else weight.rows
    out = torch.empty((1, outputs), dtype=x.dtype, device=x.device)
    total = x if entry is None else torch.empty_like(x)
    residual, norm, eps = (x, x, 0.0) if entry is None else (entry.residual, entry.norm_weight, entry.eps)
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

"""Which decoders and tiles multiply one row by a matrix in planes of words."""

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
from cadence.kernels.triton.gemv import Entry
from cadence.kernels.triton.private import is_interpreted
from cadence.kernels.triton.span_gemv import span_gemv

_BLOCK = 256  # columns whose scales a thread takes at once


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
    x, width, kind = x.contiguous(), weight.cols, KINDS[weight.kind]
    outputs = weight.rows // 2 if gate else weight.rows
    out = torch.empty((1, outputs), dtype=x.dtype, device=x.device)
    total = x if entry is None else torch.empty_like(x)
    residual, norm, eps = (x, x, 0.0) if entry is None else (entry.residual, entry.norm_weight, entry.eps)
    tile = tile or choose_span(width)
    count = max(min(tile.columns, triton.next_power_of_2(width)), _BLOCK) // SPAN
    parts = tile.parts if SPAN * count >= width else 1
    taken = parts * (tile.rows // 2 if gate else tile.rows)
    block = _BLOCK if width % _BLOCK == 0 else SPAN
    span_gemv[(triton.cdiv(outputs, taken),)](
        out, total, x, residual, norm, *(weight.planes[place] for place in kind.planes), x if bias is None else bias,
        eps, outputs,
        WIDTH=width, PARTS=parts, ROWS=tile.rows, SPANS=count, GROUP=weight.form.group,
        GROUPS=block // weight.form.group, ZERO=kind.zero, SIGNED=kind.signed, SHIFTS=weight.form.shifts,
        LOAD=kind.load, VALUES=kind.values, SCALES=kind.scales, NORM=entry is not None, GATE=gate,
        BIAS=bias is not None, QUICK=not is_interpreted(), PDL=pdl,
        num_warps=max(count // 32, 1), launch_pdl=pdl,
    )  # fmt: skip
    return out, total

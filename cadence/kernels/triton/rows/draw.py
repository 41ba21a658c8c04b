"""One token per line of logits: the most likely one, or with Gumbel noise a fair draw. Two launches.

The vocabulary is cut into pieces; each leaves its highest value and where that stands as one number, and the second
kernel takes the highest of those. The lower id wins among equals, and NaN over everything: it must not be overlooked.
"""

# ruff: noqa: N803 - capitals mark compile-time constants
from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from cadence.kernels.interface.ops import DrawParams, Pair
from cadence.kernels.triton.common.launch import quick
from cadence.kernels.triton.rows.gumbel import gumbel, philox

_QUADS = 512  # of ids, per piece


@triton.jit
def _order(value):
    """An int32 that orders as the float32 does: NaN above all, -0.0 and 0.0 alike."""
    bits = (value + 0.0).to(tl.int32, bitcast=True)
    return tl.where(value != value, 0x7FFFFFFF, bits ^ ((bits >> 31) & 0x7FFFFFFF))


@quick
@triton.jit
def pieces(
    key_ptr, ids_ptr, logits_ptr, rows_ptr, positions_ptr, temperatures_ptr, seeds_ptr, random_ptr,
    line_stride, row_stride, position_stride, temperature_stride, seed_stride, random_stride, vocab, num_pieces,
    QUADS: tl.constexpr, MAPPED: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Program (s, b) takes columns [4 * QUADS * b, 4 * QUADS * (b + 1)) of line s; MAPPED: they have ids."""
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    line = tl.program_id(0).to(tl.int64)
    place = tl.program_id(1) * (4 * QUADS) + tl.arange(0, 4 * QUADS)
    value = tl.load(logits_ptr + line * line_stride + place, place < vocab, other=float("-inf")).to(tl.float32)
    if MAPPED:
        ids = tl.load(ids_ptr + place, place < vocab, other=0)
        ids = tl.where(value == float("-inf"), 0, ids)  # as good as an id without a column
    else:
        ids = place
    row = tl.load(rows_ptr + line * row_stride).to(tl.int64)
    temperature = tl.load(temperatures_ptr + row * temperature_stride)
    if temperature != 1.0:
        value = tl.div_rn(value, tl.zeros_like(value) + temperature)
    if tl.load(random_ptr + row * random_stride) != 0:
        seed = tl.load(seeds_ptr + row * seed_stride)
        position = tl.load(positions_ptr + line * position_stride).to(tl.int64)
        if MAPPED:
            w0, w1, w2, w3 = philox((ids // 4).to(tl.uint32), seed, position)
            word = ids % 4
            value += gumbel(tl.where(word < 2, tl.where(word == 0, w0, w1), tl.where(word == 2, w2, w3)))
        else:
            quad = tl.program_id(1) * QUADS + tl.arange(0, QUADS)
            w0, w1, w2, w3 = philox(quad.to(tl.uint32), seed, position)
            # In the order of the ids: word j of a quad belongs to id 4 * quad + j.
            value += gumbel(tl.reshape(tl.join(tl.join(w0, w2), tl.join(w1, w3)), [4 * QUADS]))
    # A place beyond the end has -inf and loses to every place inside, which is lower.
    order = _order(value)
    top = tl.max(order, 0)
    chosen = tl.min(tl.where(order == top, ids, 0x7FFFFFFF), 0)
    key = (top.to(tl.int64) << 32) | (0x7FFFFFFF - chosen).to(tl.int64)
    tl.store(key_ptr + line * num_pieces + tl.program_id(1), key)


@quick
@triton.jit
def best(tokens_ptr, peaks_ptr, key_ptr, num_pieces, PIECES: tl.constexpr, PDL: tl.constexpr):
    """One line per program: keys [S, num_pieces] -> tokens, peaks [S]."""
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    line = tl.program_id(0).to(tl.int64)
    piece = tl.arange(0, PIECES)
    lowest = -0x7FFFFFFFFFFFFFFF
    key = tl.max(tl.load(key_ptr + line * num_pieces + piece, piece < num_pieces, other=lowest), 0)
    order = (key >> 32).to(tl.int32)
    tl.store(tokens_ptr + line, (0x7FFFFFFF - (key & 0x7FFFFFFF)).to(tl.int32))
    tl.store(peaks_ptr + line, (order ^ ((order >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True))


def draw(
    logits: torch.Tensor,
    rows: torch.Tensor,
    positions: torch.Tensor,
    params: DrawParams,
    ids: torch.Tensor,
    pdl: bool,
) -> Pair:
    """`Ops.draw`."""
    (lines, vocab), mapped = logits.shape, ids.numel() > 0
    count = triton.cdiv(vocab, 4 * _QUADS)
    keys = torch.empty((lines, count), dtype=torch.int64, device=logits.device)
    inputs = (logits, rows, positions, params.temperatures, params.seeds, params.random)
    pieces[(lines, count)](
        keys, ids if mapped else rows, *inputs, *[tensor.stride(0) for tensor in inputs], vocab, count,
        QUADS=_QUADS, MAPPED=mapped, PDL=pdl, num_warps=4, launch_pdl=pdl,
    )  # fmt: skip
    tokens = torch.empty(lines, dtype=torch.int32, device=logits.device)
    peaks = torch.empty(lines, dtype=torch.float32, device=logits.device)
    best[(lines,)](tokens, peaks, keys, count, PIECES=triton.next_power_of_2(count), PDL=pdl, launch_pdl=pdl)
    return tokens, peaks

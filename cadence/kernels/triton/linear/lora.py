"""Adapters on top of products: two launches, x a^T and that times b.

A program takes a tile of lines and one slot, and those of the lines that are in that slot, some at a time; where none
is, it ends at once. So lines of a tile belong to one program each, nothing is added up between programs, and a line's
sums have one order. The first launch may split the columns of x among programs; what they leave is added up, in order,
by the second.

Matrices are found by their addresses in the table of entries: a captured launch serves whatever lies in the slots.
"""

# ruff: noqa: N803 - capitals mark compile-time constants
from __future__ import annotations

from dataclasses import replace

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from cadence.kernels.interface.lora_ops import (
    ENTRY_WORDS,
    WORD_A,
    WORD_B,
    WORD_FACTOR,
    WORD_OFFSET,
    WORD_RANK,
    WORD_SAVED,
    WORD_SCALE,
    LoraMap,
    LoraPart,
)
from cadence.kernels.triton.common.launch import quick

_ENTRY = tl.constexpr(ENTRY_WORDS)
_A, _B, _RANK, _SCALE = tl.constexpr(WORD_A), tl.constexpr(WORD_B), tl.constexpr(WORD_RANK), tl.constexpr(WORD_SCALE)
_FACTOR, _OFFSET, _SAVED = tl.constexpr(WORD_FACTOR), tl.constexpr(WORD_OFFSET), tl.constexpr(WORD_SAVED)

_RANKS = 16  # rows of a at a time: the least that a tile product takes
_COLUMNS = 128  # of x at a time
_FEW_LINES = 32  # of a tile; with no more, a program takes more columns of x at a time
_MANY_COLUMNS = 512
_MOST_SPLITS = 16
_OUTPUTS = 128  # columns of y
_MOST_LINES = 64
_TOKENS = 256


@triton.jit
def _lines_of(slots_ptr, slot, lines, LINES: tl.constexpr):
    """-> (numbers of a tile's lines, which of them are in the slot)"""
    line = tl.program_id(0) * LINES + tl.arange(0, LINES)
    return line.to(tl.int64), tl.load(slots_ptr + line, line < lines, other=-1) == slot


@triton.jit
def _lane_lines(line, mine, from_lane, LANES: tl.constexpr):
    """Of a tile's lines that are in a slot, numbers [from_lane, from_lane + LANES) -> (which lines these are, whether
    there are so many)"""
    number = tl.cumsum(mine.to(tl.int32), 0) - 1
    lane = from_lane + tl.arange(0, LANES)
    is_it = mine[None, :] & (number[None, :] == lane[:, None])
    return tl.sum(tl.where(is_it, line[None, :], 0), 1), tl.max(is_it.to(tl.int32), 1) > 0


@triton.jit
def _address(entry, WORD: tl.constexpr, TYPE: tl.constexpr):
    """What a word of the entry points to; everything there begins at a multiple of 64 bytes."""
    return tl.multiple_of(tl.load(entry + WORD).to(tl.pointer_type(TYPE)), 16)


@triton.jit
def _piece_of_x(x_ptr, line, column, mine, x_stride, WIDTH: tl.constexpr):
    """[lines, columns]"""
    at = x_ptr + line[:, None] * x_stride + column[None, :]
    return tl.load(at, mine[:, None] & (column < WIDTH)[None, :], other=0.0)


@triton.jit
def _piece_of_a(a_ptr, row, column, rank, WIDTH: tl.constexpr):
    """[columns, ranks]"""
    at = a_ptr + row[None, :] * WIDTH + column[:, None]
    return tl.load(at, (row < rank)[None, :] & (column < WIDTH)[:, None], other=0.0)


@quick
@triton.jit(do_not_specialize=["lines"])
def _shrink(
    inner_ptr, x_ptr, slots_ptr, entries_ptr, lines, slot_words, first, x_stride,
    WIDTH: tl.constexpr, PARTS: tl.constexpr, MAX_RANK: tl.constexpr, SPLITS: tl.constexpr, SPAN: tl.constexpr,
    LINES: tl.constexpr, LANES: tl.constexpr, RANKS: tl.constexpr, COLUMNS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """inner [SPLITS, lines, PARTS, MAX_RANK], whose sum is x [lines, WIDTH] times a of each part. A program takes SPAN
    columns of x; its first piece of a is on its way while the launch before ends."""
    slot, part, split = tl.program_id(1), tl.program_id(2) // SPLITS, tl.program_id(2) % SPLITS
    if PDL:
        gdc_launch_dependents()
    entry = entries_ptr + slot * slot_words + (first + part) * _ENTRY
    a_ptr = _address(entry, _A, x_ptr.dtype.element_ty)
    rank = tl.load(entry + _RANK).to(tl.int32)
    begin = split * SPAN
    end = tl.minimum(begin + SPAN, WIDTH)
    piece = tl.arange(0, COLUMNS)
    row = tl.arange(0, RANKS)
    a = _piece_of_a(a_ptr, row, begin + piece, rank, WIDTH)
    if PDL:
        gdc_wait()
    line, in_slot = _lines_of(slots_ptr, slot, lines, LINES)
    for from_lane in tl.range(0, tl.sum(in_slot.to(tl.int32), 0), LANES, num_stages=1):
        own, mine = _lane_lines(line, in_slot, from_lane, LANES)
        place = ((split * lines + own) * PARTS + part) * MAX_RANK
        x = _piece_of_x(x_ptr, own, begin + piece, mine, x_stride, WIDTH)
        acc = tl.dot(x, a, input_precision="ieee")
        for from_column in range(begin + COLUMNS, end, COLUMNS):
            x = _piece_of_x(x_ptr, own, from_column + piece, mine, x_stride, WIDTH)
            more_of_a = _piece_of_a(a_ptr, row, from_column + piece, rank, WIDTH)
            acc = tl.dot(x, more_of_a, acc, input_precision="ieee")
        tl.store(inner_ptr + place[:, None] + row[None, :], acc, mine[:, None] & (row < rank)[None, :])
        for from_rank in tl.range(RANKS, rank, RANKS, num_stages=1):
            acc = tl.zeros([LANES, RANKS], tl.float32)
            more = from_rank + row
            for from_column in range(begin, end, COLUMNS):
                x = _piece_of_x(x_ptr, own, from_column + piece, mine, x_stride, WIDTH)
                more_of_a = _piece_of_a(a_ptr, more, from_column + piece, rank, WIDTH)
                acc = tl.dot(x, more_of_a, acc, input_precision="ieee")
            tl.store(inner_ptr + place[:, None] + more[None, :], acc, mine[:, None] & (more < rank)[None, :])


@quick
@triton.jit(do_not_specialize=["lines"])
def _look_up(
    inner_ptr, like_ptr, ids_ptr, slots_ptr, entries_ptr, lines, slot_words, first,
    MAX_RANK: tl.constexpr, LINES: tl.constexpr, RANKS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """inner [lines, MAX_RANK] = a[ids]. like: of a's type"""
    slot = tl.program_id(1)
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    line, mine = _lines_of(slots_ptr, slot, lines, LINES)
    if tl.max(mine.to(tl.int32), 0) > 0:
        entry = entries_ptr + slot * slot_words + first * _ENTRY
        a_ptr = _address(entry, _A, like_ptr.dtype.element_ty)
        rank = tl.load(entry + _RANK).to(tl.int32)
        row = tl.load(ids_ptr + line, mine, other=0).to(tl.int64) * rank
        for from_rank in range(0, rank, RANKS):
            column = from_rank + tl.arange(0, RANKS)
            inside = mine[:, None] & (column < rank)[None, :]
            found = tl.load(a_ptr + row[:, None] + column[None, :], inside, other=0.0).to(tl.float32)
            tl.store(inner_ptr + line[:, None] * MAX_RANK + column[None, :], found, inside)


@triton.jit
def _inner_of(inner_ptr, place, column, inside, split_size, SPLITS: tl.constexpr):
    """What the splits left, added up: [lines, ranks] float32."""
    at = place[:, None] + column[None, :]
    inner = tl.load(inner_ptr + at, inside, other=0.0)
    for split in tl.static_range(1, SPLITS):
        inner += tl.load(inner_ptr + split * split_size + at, inside, other=0.0)
    return inner


@triton.jit
def _piece_of_b(b_ptr, row, output, rank, width):
    """[ranks, outputs]"""
    at = b_ptr + row[:, None] * width + output[None, :]
    return tl.load(at, (row < rank)[:, None] & (output < width)[None, :], other=0.0)


@quick
@triton.jit(do_not_specialize=["lines"])
def _expand(
    y_ptr, inner_ptr, slots_ptr, starts_ptr, entries_ptr, lines, slot_words, first, y_stride, more_scale,
    PARTS: tl.constexpr, BLOCKS: tl.constexpr, MAX_RANK: tl.constexpr, SPLITS: tl.constexpr,
    LINES: tl.constexpr, LANES: tl.constexpr, RANKS: tl.constexpr, OUTPUTS: tl.constexpr, ALIGNED: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """y [lines, outputs] as `LoraPart` says; b is of y's type. BLOCKS tiles of OUTPUTS columns cover any part. A
    program's first piece of b is on its way while the launch before ends."""
    part, block, slot = tl.program_id(1) // BLOCKS, tl.program_id(1) % BLOCKS, tl.program_id(2)
    if PDL:
        gdc_launch_dependents()
    start = tl.load(starts_ptr + part)
    width = tl.load(starts_ptr + part + 1) - start
    if ALIGNED:  # so that loads are wide
        start, width = tl.multiple_of(start, 16), tl.multiple_of(width, 16)
    entry = entries_ptr + slot * slot_words + (first + part) * _ENTRY
    rank = tl.load(entry + _RANK).to(tl.int32)
    has_factor, has_offset = tl.load(entry + _FACTOR) != 0, tl.load(entry + _OFFSET) != 0
    b_ptr = _address(entry, _B, y_ptr.dtype.element_ty)
    scale = tl.load(entry + _SCALE).to(tl.int32).to(tl.float32, bitcast=True) * more_scale
    output = block * OUTPUTS + tl.arange(0, OUTPUTS)
    row = tl.arange(0, RANKS)
    b = _piece_of_b(b_ptr, row, output, rank, width)
    if PDL:
        gdc_wait()
    line, in_slot = _lines_of(slots_ptr, slot, lines, LINES)
    count = tl.sum(in_slot.to(tl.int32), 0)
    if (block * OUTPUTS < width) & ((rank > 0) | has_factor | has_offset):
        exists = output < width
        factor_ptr, offset_ptr = _address(entry, _FACTOR, tl.float32), _address(entry, _OFFSET, tl.float32)
        split_size = lines.to(tl.int64) * PARTS * MAX_RANK
        for from_lane in tl.range(0, count, LANES, num_stages=1):
            own, mine = _lane_lines(line, in_slot, from_lane, LANES)
            y_at = y_ptr + own[:, None] * y_stride + (start + output)[None, :]
            touched = mine[:, None] & exists[None, :]
            before = tl.load(y_at, touched, other=0.0)
            place = (own * PARTS + part) * MAX_RANK
            inside = mine[:, None] & (row < rank)[None, :]
            inner = _inner_of(inner_ptr, place, row, inside, split_size, SPLITS) * scale
            acc = tl.dot(inner.to(b.dtype), b, input_precision="ieee")
            for from_rank in tl.range(RANKS, rank, RANKS, num_stages=1):
                more = from_rank + row
                inside = mine[:, None] & (more < rank)[None, :]
                inner = _inner_of(inner_ptr, place, more, inside, split_size, SPLITS) * scale
                more_of_b = _piece_of_b(b_ptr, more, output, rank, width)
                acc = tl.dot(inner.to(b.dtype), more_of_b, acc, input_precision="ieee")
            acc += before.to(tl.float32)
            acc = acc * tl.load(factor_ptr + output, exists & has_factor, other=1.0)[None, :]
            acc = acc + tl.load(offset_ptr + output, exists & has_offset, other=0.0)[None, :]
            tl.store(y_at, acc.to(y_ptr.dtype.element_ty), touched)


@quick
@triton.jit
def _saved_rows(
    y_ptr, ids_ptr, slots_ptr, entries_ptr, slot_words, first, y_stride, scale,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """A program per line and block of columns."""
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    line = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots_ptr + line)
    if slot >= 0:
        entry = entries_ptr + slot * slot_words + first * _ENTRY
        if tl.load(entry + _SAVED) != 0:
            saved_ptr = _address(entry, _SAVED, y_ptr.dtype.element_ty)
            column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
            row = tl.load(ids_ptr + line).to(tl.int64) * WIDTH
            found = tl.load(saved_ptr + row + column, column < WIDTH, other=0.0).to(tl.float32) * scale
            tl.store(y_ptr + line * y_stride + column, found.to(y_ptr.dtype.element_ty), column < WIDTH)


@quick
@triton.jit(do_not_specialize=["lines"])
def _saved_logits(
    y_ptr, x_ptr, slots_ptr, entries_ptr, lines, slot_words, first, x_stride, y_stride, vocabulary,
    WIDTH: tl.constexpr, LINES: tl.constexpr, OUTPUTS: tl.constexpr, COLUMNS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """y [lines, vocabulary] = x [lines, WIDTH] times saved [vocabulary, WIDTH], of x's type."""
    slot = tl.program_id(2)
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    line, mine = _lines_of(slots_ptr, slot, lines, LINES)
    entry = entries_ptr + slot * slot_words + first * _ENTRY
    if (tl.max(mine.to(tl.int32), 0) > 0) & (tl.load(entry + _SAVED) != 0):
        saved_ptr = _address(entry, _SAVED, x_ptr.dtype.element_ty)
        output = tl.program_id(1) * OUTPUTS + tl.arange(0, OUTPUTS)
        exists = output < vocabulary
        acc = tl.zeros([LINES, OUTPUTS], tl.float32)
        for from_column in range(0, WIDTH, COLUMNS):
            column = from_column + tl.arange(0, COLUMNS)
            inside = column < WIDTH
            x_at = x_ptr + line[:, None] * x_stride + column[None, :]
            x = tl.load(x_at, mine[:, None] & inside[None, :], other=0.0)
            w_at = saved_ptr + output.to(tl.int64)[None, :] * WIDTH + column[:, None]
            acc = tl.dot(x, tl.load(w_at, exists[None, :] & inside[:, None], other=0.0), acc, input_precision="ieee")
        y_at = y_ptr + line[:, None] * y_stride + output[None, :]
        tl.store(y_at, acc.to(y_ptr.dtype.element_ty), mine[:, None] & exists[None, :])


@quick
@triton.jit(do_not_specialize=["num_tokens", "num_rows"])
def _token_slots(
    out_ptr, row_slots_ptr, rows_ptr, query_start_ptr, row_stride, num_rows, num_tokens, TOKENS: tl.constexpr,
):  # fmt: skip
    """The run of a token is found by halving."""
    token = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    low = tl.zeros([TOKENS], tl.int32)
    high = low + num_rows  # the run lies in [low, high)
    width = num_rows
    while width > 0:
        middle = (low + high) // 2
        is_past = tl.load(query_start_ptr + tl.minimum(middle + 1, num_rows)) <= token
        open_ = low < high
        low = tl.where(open_ & is_past, middle + 1, low)
        high = tl.where(open_ & (is_past == 0), middle, high)
        width = width // 2
    exists = low < num_rows
    row = tl.load(rows_ptr + low, exists, other=0).to(tl.int64)
    slot = tl.load(row_slots_ptr + row * row_stride, exists, other=-1)
    tl.store(out_ptr + token, tl.where(exists, slot, -1), token < num_tokens)


class TritonLoraOps:
    """With `deterministic`, a line's bits do not depend on how many lines there are."""

    any_type = False

    def __init__(self, deterministic: bool = False, pdl: bool = False) -> None:
        self._deterministic = deterministic
        self._pdl = pdl

    def arranged(self, part: LoraPart, embedding: bool) -> LoraPart:
        return replace(part, a=part.a.contiguous(), b=part.b.contiguous())

    def token_slots(
        self, row_slots: torch.Tensor, rows: torch.Tensor, query_start: torch.Tensor, out: torch.Tensor
    ) -> None:
        count = out.shape[0]
        _token_slots[(triton.cdiv(count, _TOKENS),)](
            out, row_slots, rows, query_start, row_slots.stride(0), rows.shape[0], count, TOKENS=_TOKENS
        )

    def add(self, y: torch.Tensor, x: torch.Tensor, lora: LoraMap, slots: torch.Tensor) -> None:
        x = x if x.stride(1) == 1 else x.contiguous()
        (lines, width), parts = x.shape, len(lora.widths)
        tile = self._lines(lines)
        columns = _MANY_COLUMNS if tile <= _FEW_LINES and width >= _MANY_COLUMNS else _COLUMNS
        span = max(triton.cdiv(width, _MOST_SPLITS * columns) * columns, _MANY_COLUMNS)
        splits = triton.cdiv(width, span)
        inner = torch.empty((splits, lines, parts, lora.max_rank), dtype=torch.float32, device=x.device)
        _shrink[(triton.cdiv(lines, tile), lora.num_slots, parts * splits)](
            inner, x, slots, lora.entries, lines, lora.entries.stride(0), lora.first, x.stride(0),
            WIDTH=width, PARTS=parts, MAX_RANK=lora.max_rank, SPLITS=splits, SPAN=span,
            LINES=tile, LANES=_lanes(tile), RANKS=_RANKS, COLUMNS=columns, PDL=self._pdl, launch_pdl=self._pdl,
        )  # fmt: skip
        self._expand(y, inner, lora, slots, 1.0)

    def add_embedding(
        self, y: torch.Tensor, ids: torch.Tensor, lora: LoraMap, slots: torch.Tensor, scale: float
    ) -> None:
        lines = y.shape[0]
        inner = torch.empty((1, lines, 1, lora.max_rank), dtype=torch.float32, device=y.device)
        tile = self._lines(lines)
        _look_up[(triton.cdiv(lines, tile), lora.num_slots)](
            inner, y, ids, slots, lora.entries, lines, lora.entries.stride(0), lora.first,
            MAX_RANK=lora.max_rank, LINES=tile, RANKS=_RANKS, PDL=self._pdl, launch_pdl=self._pdl,
        )  # fmt: skip
        self._expand(y, inner, lora, slots, scale)

    def saved_rows(self, y: torch.Tensor, ids: torch.Tensor, lora: LoraMap, slots: torch.Tensor, scale: float) -> None:
        lines, width = y.shape
        _saved_rows[(lines, triton.cdiv(width, 1024))](
            y, ids, slots, lora.entries, lora.entries.stride(0), lora.first, y.stride(0), scale,
            WIDTH=width, BLOCK=1024, PDL=self._pdl, launch_pdl=self._pdl,
        )  # fmt: skip

    def saved_logits(self, y: torch.Tensor, x: torch.Tensor, lora: LoraMap, slots: torch.Tensor) -> None:
        x = x if x.stride(1) == 1 else x.contiguous()
        (lines, width), vocabulary = x.shape, y.shape[1]
        tile = self._lines(lines)
        _saved_logits[(triton.cdiv(lines, tile), triton.cdiv(vocabulary, _OUTPUTS), lora.num_slots)](
            y, x, slots, lora.entries, lines, lora.entries.stride(0), lora.first, x.stride(0), y.stride(0), vocabulary,
            WIDTH=width, LINES=tile, OUTPUTS=_OUTPUTS, COLUMNS=_COLUMNS // 2, PDL=self._pdl, launch_pdl=self._pdl,
        )  # fmt: skip

    def _expand(self, y: torch.Tensor, inner: torch.Tensor, lora: LoraMap, slots: torch.Tensor, scale: float) -> None:
        splits, lines, parts, _ = inner.shape
        tile, blocks = self._lines(lines), triton.cdiv(max(lora.widths), _OUTPUTS)
        aligned = all(width % 16 == 0 for width in lora.widths)
        _expand[(triton.cdiv(lines, tile), parts * blocks, lora.num_slots)](
            y, inner, slots, lora.starts, lora.entries, lines, lora.entries.stride(0), lora.first, y.stride(0), scale,
            PARTS=parts, BLOCKS=blocks, MAX_RANK=lora.max_rank, SPLITS=splits,
            LINES=tile, LANES=_lanes(tile), RANKS=_RANKS, OUTPUTS=_OUTPUTS, ALIGNED=aligned,
            PDL=self._pdl, launch_pdl=self._pdl,
        )  # fmt: skip

    def _lines(self, lines: int) -> int:
        """Of one tile: the least where results must not depend on how many there are."""
        return 16 if self._deterministic else min(max(triton.next_power_of_2(lines), 16), _MOST_LINES)


def _lanes(tile: int) -> int:
    """Lines of a slot that a program takes at a time: few, where a tile has rows of many slots; all of a prompt's."""
    return 16 if tile <= _FEW_LINES else tile

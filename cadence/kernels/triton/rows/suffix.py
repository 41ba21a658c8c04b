"""Drafts out of earlier texts, in Triton: one launch finds places, in pieces of texts; one counts what follows them."""

# ruff: noqa: N803 - capitals mark compile-time constants
from __future__ import annotations

import torch
import triton
import triton.language as tl

from cadence.kernels.interface.row_ops import RowState, StepBatch
from cadence.kernels.interface.suffix_ops import MILLION, MOST_FOUND, NO_TEXT, SuffixCorpus, SuffixRules
from cadence.kernels.triton.common.launch import quick

_PIECE = 4096  # places that one program looks at
_MOST_DRAFTS = 32
_COPIED = 1024  # tokens that are copied together


@triton.jit
def _most_drafts(
    run, row, line_start_ptr, most_ptr, computed_ptr, max_ptr, quiet_ptr, scalar_stride, most_stride, MOST: tl.constexpr
):  # fmt: skip
    """Drafts that a row may have, 0 of one that gets none; tokens that it has."""
    has_line = tl.load(line_start_ptr + run) < tl.load(line_start_ptr + run + 1)
    length = tl.load(computed_ptr + row * scalar_stride) + 1
    room = tl.load(max_ptr + row * scalar_stride) - 1 - length
    count = tl.minimum(tl.minimum(tl.load(most_ptr + row * most_stride), room), MOST)
    goes_on = has_line & (tl.load(quiet_ptr + row * scalar_stride) == 0)
    return tl.where(goes_on, count, 0), length


@quick
@triton.jit(do_not_specialize=["depth"])
def _find(
    rows_ptr, line_start_ptr, most_ptr, tokens_ptr, computed_ptr, max_ptr, quiet_ptr, ring_ptr, span_ptr,
    sizes_ptr, counts_ptr, found_ptr, tokens_stride, scalar_stride, most_stride, depth,
    OWN: tl.constexpr, CAPACITY: tl.constexpr, PIECE: tl.constexpr, MOST: tl.constexpr, MOST_FOUND: tl.constexpr,
    NONE: tl.constexpr,
):  # fmt: skip
    """A program per row and piece, the latest first: OWN pieces of the row, then those of the corpus. It leaves the
    size of the longest match in the piece and the latest places with it, as numbers: 0 is the latest place of all."""
    run, piece = tl.program_id(0), tl.program_id(1)
    row = tl.load(rows_ptr + run).to(tl.int64)
    count, length = _most_drafts(
        run, row, line_start_ptr, most_ptr, computed_ptr, max_ptr, quiet_ptr, scalar_stride, most_stride, MOST
    )
    if count > 0:
        known_ptr = tokens_ptr + row * tokens_stride
        first, end = tl.load(span_ptr), tl.load(span_ptr + 1)
        text_ptr = ring_ptr
        mask = tl.full([], CAPACITY - 1, tl.int64)
        number = piece * PIECE + tl.arange(0, PIECE)
        age = number - OWN * PIECE + 1
        if piece < OWN:
            first, end = first * 0, length.to(tl.int64)
            text_ptr = known_ptr
            mask = tl.full([], 0x7FFFFFFF, tl.int64)
            age = number + 1
        place = end - age  # a match stands before it, a token in it
        size = tl.zeros([PIECE], dtype=tl.int32)
        inside = place > first
        if tl.max(inside.to(tl.int32), 0) > 0:
            same = inside & (tl.load(text_ptr + (place & mask), mask=inside, other=NONE) != NONE)
            going = tl.max(same.to(tl.int32), 0)
            back = going * 0 + 1
            while (going > 0) & (back <= depth):
                wanted = tl.load(known_ptr + length - back, mask=back <= length, other=NONE - 1)
                before = place - back
                token = tl.load(text_ptr + (before & mask), mask=same & (before >= first), other=NONE - 2)
                same = same & (token == wanted)
                size += same.to(tl.int32)
                going = tl.max(same.to(tl.int32), 0)
                back += 1
        best = tl.max(size, 0)
        at = run * tl.num_programs(1) + piece
        tl.store(sizes_ptr + at, best)
        if best > 0:
            longest = size == best
            index = tl.cumsum(longest.to(tl.int32), 0) - 1
            tl.store(found_ptr + at * MOST_FOUND + index, number, mask=longest & (index < MOST_FOUND))
            tl.store(counts_ptr + at, tl.minimum(tl.sum(longest.to(tl.int32), 0), MOST_FOUND))


@quick
@triton.jit(do_not_specialize=["num_pieces", "factor", "least_share"])
def _draft(
    rows_ptr, line_start_ptr, most_ptr, tokens_ptr, computed_ptr, max_ptr, quiet_ptr, drafts_ptr, ring_ptr, span_ptr,
    sizes_ptr, counts_ptr, found_ptr, tokens_stride, scalar_stride, most_stride, num_pieces, factor, least_share,
    OWN: tl.constexpr, CAPACITY: tl.constexpr, PIECE: tl.constexpr, PIECES: tl.constexpr, MOST: tl.constexpr,
    MOST_FOUND: tl.constexpr, MILLION: tl.constexpr, NONE: tl.constexpr,
):  # fmt: skip
    """A program per row. PIECES: num_pieces or more, a power of two."""
    run = tl.program_id(0)
    row = tl.load(rows_ptr + run).to(tl.int64)
    most, length = _most_drafts(
        run, row, line_start_ptr, most_ptr, computed_ptr, max_ptr, quiet_ptr, scalar_stride, most_stride, MOST
    )
    if most > 0:
        pieces = tl.arange(0, PIECES)
        exists = pieces < num_pieces
        sizes = tl.load(sizes_ptr + run * num_pieces + pieces, mask=exists, other=0)
        size = tl.max(sizes, 0)
        longest = exists & (sizes == size) & (size > 0)
        counts = tl.load(counts_ptr + run * num_pieces + pieces, mask=longest, other=0)
        ends = tl.cumsum(counts, 0)  # places in all pieces up to this one
        total = tl.minimum(tl.sum(counts, 0), MOST_FOUND)
        index = tl.arange(0, MOST_FOUND)
        is_before = ends[None, :] <= index[:, None]  # pieces before the one that has place `index`
        piece = tl.sum(is_before.to(tl.int32), 1)
        begin = tl.max(tl.where(is_before, ends[None, :], 0), 1)
        alive = index < total
        at = (run * num_pieces + piece) * MOST_FOUND + index - begin
        number = tl.load(found_ptr + at, mask=alive, other=0)
        is_own = number < OWN * PIECE
        age = tl.where(is_own, number, number - OWN * PIECE) + 1
        known_ptr = tokens_ptr + row * tokens_stride
        own = length - age
        shared = tl.load(span_ptr + 1) - age
        by_factor = tl.maximum(size.to(tl.int64) * factor // MILLION, 1)
        limit = tl.minimum(most.to(tl.int64), by_factor).to(tl.int32)
        limit = tl.where(total > 0, limit, 0)
        i = limit * 0
        drafts = limit * 0
        while i < limit:
            token = tl.load(known_ptr + own + i % age, mask=alive & is_own, other=NONE)
            is_known = alive & (is_own == 0) & (i < age)
            from_corpus = tl.load(ring_ptr + ((shared + i) & (CAPACITY - 1)), mask=is_known, other=NONE)
            token = tl.where(is_own, token, from_corpus)
            alive = alive & (token != NONE)
            equal = alive[:, None] & alive[None, :] & (token[:, None] == token[None, :])
            key = tl.sum(equal.to(tl.int32), 1) * MOST_FOUND + (MOST_FOUND - 1 - index)
            key = tl.where(alive, key, 0)
            best = tl.max(key, 0)  # most of them, of equals the latest
            number_of = best // MOST_FOUND
            chosen = tl.sum(tl.where(alive & (key == best), token, 0), 0)
            fits = (number_of > 0) & (number_of * MILLION >= total * least_share)
            tl.store(known_ptr + length + i, chosen, mask=fits)
            alive = alive & (token == chosen)
            drafts += fits.to(tl.int32)
            limit = tl.where(fits, limit, 0)
            i += 1
        tl.store(drafts_ptr + row * scalar_stride, drafts)


@quick
@triton.jit(do_not_specialize=["most_texts", "row", "known", "tail"])
def _remember(
    tokens_ptr, computed_ptr, ring_ptr, span_ptr, starts_ptr, tokens_stride, scalar_stride, most_texts,
    row, known, tail,
    CAPACITY: tl.constexpr, MOST: tl.constexpr, COPIED: tl.constexpr, NONE: tl.constexpr,
):  # fmt: skip
    """One program."""
    row = row.to(tl.int64)
    length = tl.load(computed_ptr + row * scalar_stride) + 1
    if length > known:
        first = tl.maximum(tl.maximum(known - tail, length - MOST + 1), 0)
        count = length - first
        start, index = tl.load(span_ptr + 1), tl.load(span_ptr + 2)
        for begin in range(0, count + 1, COPIED):
            i = begin + tl.arange(0, COPIED)
            token = tl.load(tokens_ptr + row * tokens_stride + first + i, mask=i < count, other=NONE)
            tl.store(ring_ptr + ((start + i) & (CAPACITY - 1)), token, mask=i <= count)
        end = start + count + 1
        oldest = tl.load(starts_ptr + (index + 1) % most_texts, mask=index + 1 >= most_texts, other=0)
        oldest = tl.where(most_texts == 1, start, oldest)
        tl.store(starts_ptr + index % most_texts, start)
        tl.store(span_ptr, tl.maximum(oldest, end - CAPACITY))
        tl.store(span_ptr + 1, end)
        tl.store(span_ptr + 2, index + 1)


class TritonSuffixOps:
    def __init__(self, piece: int = _PIECE) -> None:
        """piece: places that one program looks at, a power of two"""
        self._piece = piece

    def propose(
        self, state: RowState, batch: StepBatch, most: torch.Tensor, corpus: SuffixCorpus, rules: SuffixRules
    ) -> None:
        num_rows, capacity = batch.rows.shape[0], corpus.tokens.shape[0]
        own = triton.cdiv(state.tokens.shape[1], self._piece)
        pieces = own + triton.cdiv(capacity, self._piece)
        sizes, counts = torch.empty((2, num_rows, pieces), dtype=torch.int32, device=most.device).unbind(0)
        found = torch.empty((num_rows, pieces, MOST_FOUND), dtype=torch.int32, device=most.device)
        rows = (batch.rows, batch.line_start, most, state.tokens, state.num_computed, state.max_len, state.quiet)
        strides = state.tokens.stride(0), state.quiet.stride(0), most.stride(0)
        places = {"OWN": own, "CAPACITY": capacity, "PIECE": self._piece}
        limits = {"MOST": _MOST_DRAFTS, "MOST_FOUND": MOST_FOUND}
        _find[(num_rows, pieces)](
            *rows, corpus.tokens, corpus.span, sizes, counts, found, *strides, rules.depth,
            **places, **limits, NONE=NO_TEXT, num_warps=8,
        )  # fmt: skip
        _draft[(num_rows,)](
            *rows, state.num_drafts, corpus.tokens, corpus.span, sizes, counts, found, *strides,
            pieces, rules.factor, rules.least_share,
            **places, PIECES=triton.next_power_of_2(pieces), **limits, MILLION=MILLION, NONE=NO_TEXT, num_warps=4,
        )  # fmt: skip

    def remember(self, state: RowState, corpus: SuffixCorpus, row: int, known: int, tail: int) -> None:
        _remember[(1,)](
            state.tokens, state.num_computed, corpus.tokens, corpus.span, corpus.starts,
            state.tokens.stride(0), state.quiet.stride(0), corpus.starts.shape[0], row, known, tail,
            CAPACITY=corpus.tokens.shape[0], MOST=corpus.most_tokens, COPIED=_COPIED, NONE=NO_TEXT, num_warps=4,
        )  # fmt: skip

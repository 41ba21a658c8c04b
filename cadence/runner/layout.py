"""The host's description of a forward: which rows compute how many tokens, and after which of them one is sampled."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from cadence.core.contract.step import IntArray, StepPlan
from cadence.kernels.interface.attention_batch import LONG, LongRun

MODEL_RUN = 2  # tokens of a row that decodes, which a model that drafts computes first


@dataclass(frozen=True, slots=True)
class BatchLayout:
    """R rows compute T tokens and have L lines: see `StepBatch`."""

    rows_np: IntArray  # [R]
    query_start_np: IntArray  # [R + 1]
    line_start_np: IntArray  # [R + 1]
    num_computed_np: IntArray  # [R] before this forward, upper bounds
    sampling_np: IntArray  # [S] rows with lines
    line_counts_np: IntArray  # [S] how many each has
    num_single: int  # leading rows that compute one token
    max_query_len: int
    width: int  # most lines of a row
    catch_up: tuple[tuple[int, int], ...] = ()  # (row, more positions than usual that a model which drafts may lack)
    inputs: tuple[str, ...] = ()  # features by whose input hooks some row gets more than tokens
    marks: tuple[str, ...] = ()  # features of which the plan says something for this forward alone

    @staticmethod
    def of(plan: StepPlan) -> BatchLayout:
        """Of a plan's first forward."""
        return _layout(plan.rows_np, plan.num_tokens_np, plan.num_samples_np, plan.num_computed_np)

    def following(self, width: int, waiting: Sequence[int] = ()) -> BatchLayout:
        """Of the forwards after it: each row with lines computes the token it has just got, and drafts after it, but
        for those that wait."""
        rows_np = self.sampling_np
        if waiting:
            rows_np = rows_np[~np.isin(rows_np, np.array(waiting, dtype=np.int32))]
        elif self.is_decode and self.is_even and self.width == width and not self.catch_up and not self.marks:
            return self
        return decode_layout(rows_np, width)

    def apart(self) -> tuple[BatchLayout, BatchLayout]:
        """Its rows without lines, and those with."""
        if len(self.sampling_np) == self.num_rows:
            return NO_LAYOUT, self
        counts_np, lines_np = np.diff(self.query_start_np), np.diff(self.line_start_np)
        columns = (self.rows_np, counts_np, lines_np, self.num_computed_np)
        without, those = (
            _layout(*(each_np[index_np] for each_np in columns))
            for index_np in (np.flatnonzero(lines_np == 0), np.flatnonzero(lines_np))
        )
        return without, those

    def without_padding(self, num_drafts_np: IntArray) -> BatchLayout:
        """With runs as long as they are, where rows [S] have so many drafts [S]."""
        spare_np = np.maximum(self.line_counts_np - 1 - num_drafts_np, 0)
        if not spare_np.any():
            return self
        lines_np = np.diff(self.line_start_np)
        has_lines_np = lines_np > 0
        counts_np = np.diff(self.query_start_np)
        counts_np[has_lines_np] -= spare_np
        lines_np[has_lines_np] -= spare_np
        layout = _layout(self.rows_np, counts_np, lines_np, self.num_computed_np)
        return replace(layout, catch_up=self.catch_up, inputs=self.inputs, marks=self.marks)

    def of_head(self, first: int = 0) -> BatchLayout:
        """What a head on the states of these tokens computes, from row number `first` on: the same runs, with one line
        at most."""
        counts_np, has_line_np = np.diff(self.query_start_np)[first:], self._has_line_np[first:]
        return _layout(self.rows_np[first:], counts_np, has_line_np, self.num_computed_np[first:])

    def pieces(self, most_tokens: int) -> Iterator[BatchLayout]:
        """Some of its rows after others, without lines, so many tokens at a time; of a row with more, all."""
        counts_np, first = np.diff(self.query_start_np), 0
        while first < self.num_rows:
            fits_np = np.cumsum(counts_np[first:]) <= most_tokens
            end = first + max(int(fits_np.sum()), 1)
            yield keys_layout(self.rows_np[first:end], counts_np[first:end])
            first = end

    def evened(self, num_rows: int, run: int, padding: int) -> BatchLayout:
        """Without lines, with runs of `run` tokens, and so many rows: after its own, the row `padding`."""
        rows_np = np.full(num_rows, padding, dtype=np.int32)
        rows_np[: self.num_rows] = self.rows_np
        return keys_layout(rows_np, np.full(num_rows, run, dtype=np.int32))

    def of_model(self, run: int = MODEL_RUN) -> BatchLayout:
        """What a model computes to draft after these tokens: a row that decodes lacks its newest token, and the one
        before it if all drafts were kept; of prompts it computes the same, and the newest token. run: of such a row; 0
        = as long as its run here, where a model forgets drafts"""
        counts_np, has_line_np = np.diff(self.query_start_np), self._has_line_np
        decodes_np = counts_np == np.diff(self.line_start_np)
        counts_np = np.where(decodes_np, run or counts_np, counts_np + has_line_np)
        for row, tokens in self.catch_up:
            index = np.flatnonzero(self.rows_np == row)
            counts_np[index] = np.maximum(counts_np[index], tokens)
        return _layout(self.rows_np, counts_np.astype(np.int32), has_line_np, self.num_computed_np)

    def empty(self) -> BatchLayout:
        """The same rows, which compute nothing."""
        none_np = np.zeros(self.num_rows, dtype=np.int32)
        return _layout(self.rows_np, none_np, none_np, self.num_computed_np)

    def long_runs(self) -> tuple[LongRun, ...]:
        """Those of prompts, of which num_computed is exact; for the model itself alone: one that drafts has computed
        what it has."""
        if self.max_query_len < LONG:
            return ()
        start_np = self.query_start_np
        long_np = np.flatnonzero(np.diff(start_np) >= LONG)
        return tuple(
            LongRun(row, int(start_np[row]), int(start_np[row + 1] - start_np[row]), int(self.num_computed_np[row]))
            for row in long_np.tolist()
        )

    @property
    def _has_line_np(self) -> IntArray:
        """[R] 0 or 1"""
        return (np.diff(self.line_start_np) > 0).astype(np.int32)

    @property
    def num_rows(self) -> int:
        return len(self.rows_np)

    @property
    def num_tokens(self) -> int:
        return int(self.query_start_np[-1])

    @property
    def num_lines(self) -> int:
        return int(self.line_start_np[-1])

    @property
    def is_decode(self) -> bool:
        """There is a line after every token."""
        return self.num_tokens == self.num_lines

    @property
    def is_even(self) -> bool:
        """Every row has as many tokens as any, and as many lines."""
        num_rows = len(self.rows_np)
        return num_rows * self.max_query_len == self.num_tokens and num_rows * self.width == self.num_lines

    @property
    def line_rows_np(self) -> IntArray:
        """[L] whose each line is"""
        return self.sampling_np if self.width == 1 else np.repeat(self.sampling_np, self.line_counts_np)

    def by_row(self, lines_np: IntArray, empty: int, width: int) -> IntArray:
        """What belongs to each line [m, L] -> to each row with lines [m, S, width], `empty` after its last."""
        shape = (len(lines_np), len(self.sampling_np), width)
        if len(self.sampling_np) * width == self.num_lines:
            return lines_np.reshape(shape)
        rows_np = np.full(shape, empty, dtype=np.int32)
        rows_np[:, np.arange(width) < self.line_counts_np[:, None]] = lines_np
        return rows_np


def _layout(rows_np: IntArray, counts_np: IntArray, lines_np: IntArray, computed_np: IntArray) -> BatchLayout:
    several_np, has_lines_np = np.flatnonzero(counts_np != 1), lines_np > 0
    return BatchLayout(
        rows_np=rows_np,
        query_start_np=_starts(counts_np),
        line_start_np=_starts(lines_np),
        num_computed_np=computed_np,
        sampling_np=rows_np[has_lines_np],
        line_counts_np=lines_np[has_lines_np],
        num_single=int(several_np[0]) if len(several_np) else len(counts_np),
        max_query_len=int(counts_np.max(initial=1)),
        width=int(lines_np.max(initial=1)),
    )


def decode_layout(rows_np: IntArray, width: int) -> BatchLayout:
    """Every row computes `width` tokens, with a line after each."""
    count = len(rows_np)
    start_np = np.arange(0, (count + 1) * width, width, dtype=np.int32)
    counts_np = np.full(count, width, dtype=np.int32)
    num_single = count if width == 1 else 0
    computed_np = np.zeros(count, dtype=np.int32)
    return BatchLayout(rows_np, start_np, start_np, computed_np, rows_np, counts_np, num_single, width, width)


def keys_layout(rows_np: IntArray, counts_np: IntArray) -> BatchLayout:
    """Rows compute so many tokens, with no line after any."""
    none_np = np.zeros(len(rows_np), dtype=np.int32)
    return _layout(rows_np, counts_np, none_np, none_np)


def _starts(counts_np: np.ndarray) -> IntArray:
    """[n] -> [n + 1]: where each begins, and where the last one ends"""
    start_np = np.zeros(len(counts_np) + 1, dtype=np.int32)
    np.cumsum(counts_np, out=start_np[1:])
    return start_np


_NO_ROWS_NP: IntArray = np.zeros(0, dtype=np.int32)
NO_LAYOUT = keys_layout(_NO_ROWS_NP, _NO_ROWS_NP)

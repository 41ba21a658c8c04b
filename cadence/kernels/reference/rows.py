"""Rows in plain torch."""

from __future__ import annotations

import torch

from cadence.core.step import NO_TOKEN
from cadence.kernels.interface.row_ops import FAILED, RowState, StepBatch


class ReferenceRowOps:
    def gather(self, state: RowState, tables: tuple[torch.Tensor, ...], block_size: int, batch: StepBatch) -> None:
        rows = batch.rows.long()
        quiet = state.quiet[rows]
        first = (state.num_computed[rows] - quiet).long()  # [R] position of the first token of each run
        batch.seq_lens.copy_(first + batch.query_start.diff())

        run, offset = _places(batch.query_start, batch.ids.shape[0])
        real = run < len(rows)  # [T]
        run = run.clamp(max=len(rows) - 1)
        positions = torch.where(real, first[run] + offset, 0)
        batch.ids.copy_(torch.where(real, state.tokens[rows[run], positions], 0))
        batch.positions.copy_(positions)
        heard = real & (quiet[run] == 0)
        for table, slots in zip(tables, batch.slots, strict=True):
            place = table[rows[run], positions // block_size].long() * block_size + positions % block_size
            slots.copy_(torch.where(heard, place, 0))
        self._gather_lines(batch)

    def _gather_lines(self, batch: StepBatch) -> None:
        run, _ = _places(batch.line_start, int(batch.line_start[-1]))
        before_end = batch.line_start[1:][run] - torch.arange(len(run), device=run.device)  # 1 = the run's last token
        batch.line_at[: len(run)] = batch.query_start[1:][run] - before_end
        batch.line_rows[: len(run)] = batch.rows[run]
        batch.line_lengths[: len(run)] = (batch.seq_lens[run] + 1 - before_end).int()

    def commit(
        self, state: RowState, batch: StepBatch, tokens: torch.Tensor, peaks: torch.Tensor, out: torch.Tensor
    ) -> None:
        # A quiet row may stand in the batch several times (padding); all write back what is there.
        every = batch.rows.long()
        state.num_computed[every] = torch.where(state.quiet[every].bool(), state.num_computed[every], batch.seq_lens)

        rows, lengths = batch.line_rows.long(), batch.line_lengths.long()
        was_quiet = state.quiet[rows].bool()
        failed = ~peaks.isfinite()
        tokens = tokens.masked_fill(failed, 0)
        stopped = (state.stops[rows] == tokens[:, None]).any(dim=1) & (lengths + 1 >= state.min_len[rows])
        ends = was_quiet | failed | stopped | (lengths + 1 >= state.max_len[rows])
        state.tokens[rows, lengths] = torch.where(was_quiet, state.tokens[rows, lengths], tokens)
        state.quiet[rows] = ends.int()
        out.copy_(tokens.masked_fill(failed, FAILED).masked_fill(was_quiet, NO_TOKEN))


def _places(start: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """start [R + 1]: where runs begin and the last one ends -> of the first `count` places, which run each is in (R
    behind the last) and how far from its beginning, [count] int64 each."""
    at = torch.arange(count, device=start.device)
    run = torch.searchsorted(start[1:].contiguous(), at.int(), right=True)
    return run, at - start[run]

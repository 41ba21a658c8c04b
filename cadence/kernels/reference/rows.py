"""Rows in plain torch."""

from __future__ import annotations

import torch

from cadence.core.step import NO_TOKEN
from cadence.kernels.interface.row_ops import FAILED, DecodeInputs, RowState, Sampled


class ReferenceRowOps:
    def gather(self, state: RowState, tables: tuple[torch.Tensor, ...], block_size: int, inputs: DecodeInputs) -> None:
        rows = inputs.rows.long()
        quiet = state.quiet[rows]
        positions = (state.num_computed[rows] - quiet).long()
        inputs.ids.copy_(state.tokens[rows, positions])
        inputs.positions.copy_(positions)
        inputs.seq_lens.copy_(positions + 1)
        for table, slots in zip(tables, inputs.slots, strict=True):
            place = table[rows, positions // block_size].long() * block_size + positions % block_size
            slots.copy_(place * (1 - quiet))

    def commit(self, state: RowState, sampled: Sampled, out: torch.Tensor) -> None:
        rows, lengths = sampled.rows.long(), sampled.lengths.long()
        was_quiet = state.quiet[rows].bool()
        failed = ~sampled.peaks.isfinite()
        tokens = sampled.tokens.masked_fill(failed, 0)
        stopped = (state.stops[rows] == tokens[:, None]).any(dim=1) & (lengths + 1 >= state.min_len[rows])
        ends = was_quiet | failed | stopped | (lengths + 1 >= state.max_len[rows])
        # A quiet row may stand in the batch several times (padding); all write back what is there.
        state.tokens[rows, lengths] = torch.where(was_quiet, state.tokens[rows, lengths], tokens)
        state.num_computed[rows] = torch.where(was_quiet, state.num_computed[rows], sampled.lengths)
        state.quiet[rows] = ends.int()
        out[0].copy_(tokens.masked_fill(failed, FAILED).masked_fill(was_quiet, NO_TOKEN))

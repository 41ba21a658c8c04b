"""Paged attention: sequences with one query and sequences with many take the kernel made for them.

`deterministic` sends every query through one kernel with one tile and one order of keys: its result then depends on
its own sequence alone, not on the batch, nor on how a prompt was cut into chunks.
"""

from __future__ import annotations

from dataclasses import replace

import torch
import triton

from cadence.kernels.interface.attention_batch import AttentionBatch, AttentionShape, LongRun, Sees
from cadence.kernels.triton.attention.attention_long import CudnnAttend, LongAttention, Sizes
from cadence.kernels.triton.attention.attention_prefill import QuerySpan, attend_prefill, choose_prefill_tile
from cadence.kernels.triton.attention.attention_split import (
    SplitState,
    attend_split,
    choose_single_tile,
    choose_split_tile,
    entry_bytes,
)

_FEW_ROWS = 32  # queries times heads of a group that one program of the split kernel takes
_SHORT_PROMPTS = 8  # up to so many sequences of few queries take the same form of it, whatever their number


class PagedAttention:
    def __init__(self, deterministic: bool = False, pdl: bool = False, long: LongAttention | None = None) -> None:
        self._long = long or LongAttention(CudnnAttend(), Sizes())
        self._deterministic = deterministic
        self._pdl = pdl
        self._states: dict[torch.device, SplitState] = {}

    def run(
        self,
        q: torch.Tensor,
        kv: tuple[torch.Tensor, torch.Tensor],
        batch: AttentionBatch,
        group: int,
        shape: AttentionShape,
    ) -> torch.Tensor:
        """q [T, Hq, D], kv = caches [num_blocks, Hk, block_size, D], or of eight bits -> [T, Hq, D]."""
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        single, num_seqs = batch.num_single, batch.num_sequences
        if self._deterministic:
            whole = QuerySpan(0, num_seqs, 0, q.shape[0])
            attend_prefill(out, q, kv, batch, group, shape, choose_prefill_tile(shape, q), whole, self._pdl)
            return out
        state, size = self.state(q.device), entry_bytes(q, kv[0])
        counters, processors, pdl = state.counters, state.processors, self._pdl
        if single > 0:
            tile = choose_single_tile(single, shape, size, processors)
            attend_split(out, q, kv, batch, group, shape, tile, slice(0, single), 1, counters, pdl)
        if single == num_seqs:
            return out
        per_kv = triton.next_power_of_2(shape.num_heads // shape.num_kv_heads)
        if batch.max_query_len * per_kv <= _FEW_ROWS:
            tile = choose_split_tile(max(num_seqs - single, _SHORT_PROMPTS), shape, size, processors)
            rest, most = slice(single, num_seqs), _FEW_ROWS // per_kv
            attend_split(out, q, kv, batch, group, shape, tile, rest, most, counters, pdl)
        else:
            self._prompts(out, q, kv, batch, group, shape)
        return out

    def _prompts(
        self,
        out: torch.Tensor,
        q: torch.Tensor,
        kv: tuple[torch.Tensor, torch.Tensor],
        batch: AttentionBatch,
        group: int,
        shape: AttentionShape,
    ) -> None:
        """Sequences from the first with several queries on: what is left of long ones, and all of those between."""
        tile, sequence, query = choose_prefill_tile(shape, q), batch.num_single, batch.num_single
        for run in batch.long_runs if batch.sees is Sees.CAUSAL else ():
            begin, end = self._long.span(run, kv, shape)
            if begin == end:
                continue
            if sequence < run.sequence:
                between = QuerySpan(sequence, run.sequence, query, run.first - query)
                attend_prefill(out, q, kv, batch, group, shape, tile, between)
            rows, table = slice(run.first + begin, run.first + end), batch.block_tables[group]
            row = batch.rows[run.sequence : run.sequence + 1].long()
            self._long.run(out[rows], q[rows], kv, table[row].view(-1), run.before + begin, shape.scale)
            for first, last in ((0, begin), (end, run.count)):
                if first < last:
                    part = QuerySpan(0, 1, run.first + first, last - first)
                    attend_prefill(out, q, kv, _part_of(batch, run, first, last), group, shape, tile, part)
            sequence, query = run.sequence + 1, run.first + run.count
        if sequence < batch.num_sequences:
            rest = QuerySpan(sequence, batch.num_sequences, query, q.shape[0] - query)
            attend_prefill(out, q, kv, batch, group, shape, tile, rest)

    def state(self, device: torch.device) -> SplitState:
        found = self._states.get(device)
        if found is None:
            found = self._states[device] = SplitState(device)
        return found


def _part_of(batch: AttentionBatch, run: LongRun, first: int, last: int) -> AttentionBatch:
    """A batch of one sequence: queries [first, last) of a run."""
    its = slice(run.sequence, run.sequence + 1)
    start = batch.query_start[its] + first
    query_start, seq_lens = torch.cat([start, start + (last - first)]), batch.seq_lens[its] - (run.count - last)
    return replace(batch, rows=batch.rows[its], query_start=query_start, seq_lens=seq_lens, long_runs=())

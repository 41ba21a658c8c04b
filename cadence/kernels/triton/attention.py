"""Paged attention: sequences with one query and sequences with many take the kernel made for them.

`deterministic` sends every query through one kernel with one tile and one order of keys: its result then depends on
its own sequence alone, not on the batch, nor on how a prompt was cut into chunks.
"""

from __future__ import annotations

import torch
import triton

from cadence.kernels.interface.attention_batch import AttentionBatch, AttentionShape
from cadence.kernels.triton.attention_prefill import attend_prefill, choose_prefill_tile
from cadence.kernels.triton.attention_split import SplitState, attend_split, choose_split_tile, entry_bytes

_FEW_ROWS = 32  # queries times heads of a group that one program of the split kernel takes
_SHORT_PROMPTS = 8  # up to so many sequences of few queries take the same form of it, whatever their number


class PagedAttention:
    def __init__(self, deterministic: bool = False, pdl: bool = False) -> None:
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
            attend_prefill(out, q, kv, batch, group, shape, choose_prefill_tile(shape, q), 0)
            return out
        state, size = self.state(q.device), entry_bytes(q, kv[0])
        counters, processors, pdl = state.counters, state.processors, self._pdl
        if single > 0:
            tile = choose_split_tile(single, shape, size, processors)
            attend_split(out, q, kv, batch, group, shape, tile, slice(0, single), 1, counters, pdl)
        if single == num_seqs:
            return out
        per_kv = triton.next_power_of_2(shape.num_heads // shape.num_kv_heads)
        if batch.max_query_len * per_kv <= _FEW_ROWS:
            tile = choose_split_tile(max(num_seqs - single, _SHORT_PROMPTS), shape, size, processors)
            rest, most = slice(single, num_seqs), _FEW_ROWS // per_kv
            attend_split(out, q, kv, batch, group, shape, tile, rest, most, counters, pdl)
        else:
            attend_prefill(out, q, kv, batch, group, shape, choose_prefill_tile(shape, q), single)
        return out

    def state(self, device: torch.device) -> SplitState:
        found = self._states.get(device)
        if found is None:
            found = self._states[device] = SplitState(device)
        return found

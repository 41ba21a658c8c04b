"""From a plan to a batch: indices are made on the host, copied once, and everything else is gathered on the device."""

from __future__ import annotations

import numpy as np
import torch

from cadence.core.step import StepPlan
from cadence.device.base import Device
from cadence.kernels.interface.attention_batch import AttentionBatch
from cadence.runner.state.batch import StepBatch
from cadence.runner.state.blocks import BlockTables
from cadence.runner.state.requests import RequestRows


class BatchBuilder:
    def __init__(self, device: Device, requests: RequestRows, blocks: BlockTables, block_size: int) -> None:
        self._device = device
        self._state = requests.state
        self._blocks = blocks
        self._block_size = block_size

    def build(self, plan: StepPlan) -> StepBatch:
        num_rows = len(plan.rows_np)
        query_start_np = np.zeros(num_rows + 1, dtype=np.int32)
        np.cumsum(plan.num_tokens_np, out=query_start_np[1:])
        sampling_np = np.flatnonzero(plan.samples_np)
        sequence_np = np.repeat(np.arange(num_rows, dtype=np.int32), plan.num_tokens_np)
        rows, num_tokens, query_start, sequence, sampling = self._upload(
            plan.rows_np, plan.num_tokens_np, query_start_np, sequence_np, sampling_np
        )
        rows64, sequence64, sampling64 = rows.long(), sequence.long(), sampling.long()

        quiet = self._state.quiet[rows64]
        computed = self._state.num_computed[rows64] - quiet  # [R] position of the first token
        offset = torch.arange(len(sequence_np), device=rows.device) - query_start[sequence64]
        positions = computed[sequence64] + offset  # [T] int64
        token_rows = rows64[sequence64]
        ids = self._state.tokens[token_rows, positions]
        seq_lens = computed + num_tokens
        return StepBatch(
            rows_np=plan.rows_np,
            query_start_np=query_start_np,
            num_computed_np=plan.num_computed_np,
            rows=rows64,
            ids=ids,
            positions=positions,
            attention=AttentionBatch(
                rows=rows,
                query_start=query_start,
                seq_lens=seq_lens,
                block_tables=self._blocks.tables,
                slots=self._slots(token_rows, positions, quiet[sequence64]),
                num_single=_leading_ones(plan.num_tokens_np),
                max_query_len=int(plan.num_tokens_np.max()),
                max_seq_len=int((plan.num_computed_np + plan.num_tokens_np).max()),
            ),
            computed=computed + quiet + num_tokens * (1 - quiet),
            sample_rows_np=plan.rows_np[sampling_np],
            sample_rows=rows[sampling64],
            sample_at=(query_start[1:][sampling64] - 1).long(),
            sample_lengths=seq_lens[sampling64],
        )

    def _slots(
        self, token_rows: torch.Tensor, positions: torch.Tensor, quiet: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        """Per group [T] int64: where each token's key and value are stored; those of quiet rows in the null block."""
        index = positions // self._block_size
        offset = positions % self._block_size
        heard = 1 - quiet
        return tuple((table[token_rows, index] * self._block_size + offset) * heard for table in self._blocks.tables)

    def _upload(self, *arrays_np: np.ndarray) -> list[torch.Tensor]:
        """All index arrays in one int32 copy."""
        packed = self._device.upload(np.concatenate([array.astype(np.int32) for array in arrays_np]))
        return list(packed.split([len(array) for array in arrays_np]))


def _leading_ones(counts_np: np.ndarray) -> int:
    more_np = np.flatnonzero(counts_np != 1)
    return int(more_np[0]) if len(more_np) else len(counts_np)

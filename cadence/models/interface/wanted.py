"""Whose hidden states a forward returns. Keys and values are stored for all tokens.

From where on only these are computed is the model's own statement: it picks them (`ctx.wanted`) after the last place
where a token depends on another. A decoder's is the keys of its last layer, whose `Attention` has `narrows` set.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from cadence.kernels.interface.attention_batch import AttentionBatch
from cadence.kernels.interface.ops import Ops


class EveryToken:
    def pick(self, x: torch.Tensor, ops: Ops) -> torch.Tensor:
        return x

    def attending(self, batch: AttentionBatch) -> AttentionBatch:
        return batch


EVERY_TOKEN = EveryToken()


@dataclass(frozen=True, slots=True)
class LastTokens:
    """The last tokens of S sequences. Whatever comes after the last keys are stored is computed for them alone."""

    at: torch.Tensor  # [S] int64, among the tokens of the batch
    rows: torch.Tensor  # [S] int32, of the block tables
    seq_lens: torch.Tensor  # [S] int32
    query_start: torch.Tensor  # [S + 1] int32: 0, 1, 2, …, S, never written to

    def pick(self, x: torch.Tensor, ops: Ops) -> torch.Tensor:
        """x [T, ...] -> [S, ...]"""
        return ops.pick(x, self.at)

    def attending(self, batch: AttentionBatch) -> AttentionBatch:
        """The same keys, with one query per sequence. Nothing more is stored."""
        count = self.rows.shape[0]
        return AttentionBatch(
            rows=self.rows,
            query_start=self.query_start,
            seq_lens=self.seq_lens,
            block_tables=batch.block_tables,
            slots=(),
            num_single=count,
            max_query_len=1,
            sees=batch.sees,
        )


Wanted = EveryToken | LastTokens

"""How many keys of its encoder's output each row of a forward sees."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from cadence.kernels.interface.attention_batch import AttentionBatch, Sees
from cadence.models.interface.wanted import LastTokens, Wanted

_NONE = torch.empty(0, dtype=torch.int32)


@dataclass(frozen=True, slots=True)
class EncoderLengths:
    """As the device finds them: a recorded forward reads them anew each time. None is 0, that of padding neither."""

    sequences: torch.Tensor  # [R] int32: of each sequence of the batch
    wanted: torch.Tensor  # [S] int32: of each token whose hidden states the forward returns

    def attending(self, tokens: Wanted, batch: AttentionBatch) -> AttentionBatch:
        """Queries of these tokens of the batch, each of which sees all keys of its row's encoder. The positions of
        queries mean nothing there: they may outnumber the keys."""
        lengths = self.wanted if isinstance(tokens, LastTokens) else self.sequences
        own = tokens.attending(batch)
        return AttentionBatch(
            rows=own.rows,
            query_start=own.query_start,
            seq_lens=lengths,
            block_tables=own.block_tables,
            slots=(),
            num_single=own.num_single,
            max_query_len=own.max_query_len,
            sees=Sees.BOTH_WAYS,
        )


NO_ENCODER = EncoderLengths(_NONE, _NONE)

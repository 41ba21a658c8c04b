"""`min_tokens`: no token that would end the request before that many were produced."""

from __future__ import annotations

import numpy as np
import torch

from cadence.core.contract.step import NewRow
from cadence.sample.context import SampleContext
from cadence.sample.lines import NOTHING
from cadence.sample.token_lists import NO_ENTRIES_NP, TokenLists


class MinTokens(TokenLists):
    """An entry is a token that ends the request, and `min_tokens`."""

    def entries(self, request: NewRow) -> np.ndarray:
        min_tokens = request.sampling.min_tokens
        if min_tokens <= 0:
            return NO_ENTRIES_NP
        stops_np = np.array(sorted(request.stop_token_ids), dtype=np.int64)
        return np.stack([stops_np, np.full_like(stops_np, min_tokens)], axis=1)

    def apply(self, logits: torch.Tensor, ctx: SampleContext) -> torch.Tensor:
        lines, stops, min_tokens = self.gather(ctx.rows_np).unbind(1)
        too_early = ctx.lengths[lines] - ctx.prompt_lens[lines] < min_tokens
        kept = logits[lines, stops].masked_fill(too_early, NOTHING)
        return logits.index_put_((lines, stops), kept)

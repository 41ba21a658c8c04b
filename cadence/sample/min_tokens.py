"""`min_tokens`: no token that would end the request before that many were produced."""

from __future__ import annotations

import numpy as np
import torch

from cadence.core.contract.step import NewRow
from cadence.device.base import Device
from cadence.sample.context import SampleContext
from cadence.sample.lines import NOTHING
from cadence.sample.token_lists import TokenLists


class MinTokens:
    """A `RequestTable` and a `LogitsStep`."""

    def __init__(self, device: Device, num_rows: int) -> None:
        self._lists = TokenLists(device, num_rows)  # (stop token, min_tokens)

    def add(self, row: int, request: NewRow) -> None:
        self._lists.clear(row)
        min_tokens = request.sampling.min_tokens
        if min_tokens > 0 and request.stop_token_ids:
            stops_np = np.array(sorted(request.stop_token_ids), dtype=np.int64)
            self._lists.set(row, np.stack([stops_np, np.full_like(stops_np, min_tokens)], axis=1))

    def remove(self, row: int) -> None:
        self._lists.clear(row)

    def flush(self) -> None:
        """The lists are uploaded with the step that needs them."""

    def active(self, rows_np: np.ndarray) -> bool:
        return self._lists.active(rows_np)

    def apply(self, logits: torch.Tensor, ctx: SampleContext) -> torch.Tensor:
        lines, stops, min_tokens = self._lists.gather(ctx.rows_np).unbind(1)
        too_early = ctx.lengths[lines] - ctx.prompt_lens[lines] < min_tokens
        kept = logits[lines, stops].masked_fill(too_early, NOTHING)
        return logits.index_put_((lines, stops), kept)

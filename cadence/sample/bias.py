"""`allowed_token_ids` and `logit_bias`."""

from __future__ import annotations

import numpy as np
import torch

from cadence.core.contract.step import NewRow
from cadence.device.base import Device
from cadence.sample.context import SampleContext
from cadence.sample.lines import NOTHING, LinePicker
from cadence.sample.token_lists import NO_ENTRIES_NP, TokenLists


class AllowedTokens(TokenLists):
    """Only the listed tokens can be chosen. An entry is a token."""

    def __init__(self, device: Device, num_rows: int) -> None:
        super().__init__(device, num_rows)
        self._lines = LinePicker(device)

    def entries(self, request: NewRow) -> np.ndarray:
        allowed = request.sampling.allowed_token_ids
        return NO_ENTRIES_NP if allowed is None else np.unique(allowed)[:, None]

    def apply(self, logits: torch.Tensor, ctx: SampleContext) -> torch.Tensor:
        lines, tokens = self.gather(ctx.rows_np).unbind(1)
        kept = logits[lines, tokens]
        used_np = self.used_np[ctx.rows_np]
        barred = self._lines.change(logits, used_np, lambda part, _: torch.full_like(part, NOTHING))
        return barred.index_put_((lines, tokens), kept)


class LogitBias(TokenLists):
    """A number added to the logits of listed tokens. An entry is a token and the bits of its float32 bias."""

    def entries(self, request: NewRow) -> np.ndarray:
        biases = request.sampling.logit_bias
        if not biases:
            return NO_ENTRIES_NP
        tokens_np = np.fromiter(biases.keys(), dtype=np.int64)
        bits_np = np.fromiter(biases.values(), dtype=np.float32).view(np.int32)
        return np.stack([tokens_np, bits_np.astype(np.int64)], axis=1)

    def apply(self, logits: torch.Tensor, ctx: SampleContext) -> torch.Tensor:
        lines, tokens, bits = self.gather(ctx.rows_np).unbind(1)
        return logits.index_put_((lines, tokens), logits[lines, tokens] + bits.to(torch.int32).view(torch.float32))

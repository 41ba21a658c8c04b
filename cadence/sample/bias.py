"""`allowed_token_ids` and `logit_bias`."""

from __future__ import annotations

import numpy as np
import torch

from cadence.core.contract.step import NewRow
from cadence.device.base import Device
from cadence.sample.context import SampleContext
from cadence.sample.lines import NOTHING, LinePicker
from cadence.sample.token_lists import TokenLists


class AllowedTokens:
    """A `RequestTable` and a `LogitsStep`: only the listed tokens can be chosen."""

    def __init__(self, device: Device, num_rows: int) -> None:
        self._lists = TokenLists(device, num_rows)  # (token)
        self._lines = LinePicker(device)

    def add(self, row: int, request: NewRow) -> None:
        self._lists.clear(row)
        if request.sampling.allowed_token_ids is not None:
            self._lists.set(row, np.unique(request.sampling.allowed_token_ids)[:, None])

    def remove(self, row: int) -> None:
        self._lists.clear(row)

    def flush(self) -> None:
        """The lists are uploaded with the step that needs them."""

    def active(self, rows_np: np.ndarray) -> bool:
        return self._lists.active(rows_np)

    def apply(self, logits: torch.Tensor, ctx: SampleContext) -> torch.Tensor:
        lines, tokens = self._lists.gather(ctx.rows_np).unbind(1)
        kept = logits[lines, tokens]
        used_np = self._lists.used_np[ctx.rows_np]
        barred = self._lines.change(logits, used_np, lambda part, _: torch.full_like(part, NOTHING))
        return barred.index_put_((lines, tokens), kept)


class LogitBias:
    """A `RequestTable` and a `LogitsStep`: a number added to the logits of listed tokens."""

    def __init__(self, device: Device, num_rows: int) -> None:
        self._lists = TokenLists(device, num_rows)  # (token, the float32 bias's bits)

    def add(self, row: int, request: NewRow) -> None:
        self._lists.clear(row)
        if request.sampling.logit_bias:
            tokens_np = np.fromiter(request.sampling.logit_bias.keys(), dtype=np.int64)
            bits_np = np.fromiter(request.sampling.logit_bias.values(), dtype=np.float32).view(np.int32)
            self._lists.set(row, np.stack([tokens_np, bits_np.astype(np.int64)], axis=1))

    def remove(self, row: int) -> None:
        self._lists.clear(row)

    def flush(self) -> None:
        """The lists are uploaded with the step that needs them."""

    def active(self, rows_np: np.ndarray) -> bool:
        return self._lists.active(rows_np)

    def apply(self, logits: torch.Tensor, ctx: SampleContext) -> torch.Tensor:
        lines, tokens, bits = self._lists.gather(ctx.rows_np).unbind(1)
        return logits.index_put_((lines, tokens), logits[lines, tokens] + bits.to(torch.int32).view(torch.float32))

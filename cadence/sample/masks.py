"""Rows that choose only among tokens which the host names, forward by forward."""

from __future__ import annotations

import numpy as np
import torch

from cadence.core.step import NewRow, TokenMasks
from cadence.device.base import Device
from cadence.kernels.interface.ops import Ops
from cadence.sample.context import SampleContext

_NO_MAIL = TokenMasks(np.zeros(0, dtype=np.int32), np.zeros((0, 0), dtype=np.int32))
_ANY = -1  # in place of a mask: the line may get any token


class MaskedRows:
    """A `RequestTable` and a `LogitsStep`. Masks are good for one choice of tokens."""

    def __init__(self, device: Device, ops: Ops, num_rows: int) -> None:
        self._device = device
        self._ops = ops
        self._used_np = np.zeros(num_rows, dtype=np.bool_)
        self._mail = _NO_MAIL

    def add(self, row: int, request: NewRow) -> None:
        self._used_np[row] = request.constrained

    def remove(self, row: int) -> None:
        self._used_np[row] = False

    def flush(self) -> None:
        """Masks come by mail."""

    def active(self, rows_np: np.ndarray) -> bool:
        return bool(self._used_np[rows_np].any())

    def post(self, mail: TokenMasks) -> None:
        self._mail = mail

    def apply(self, logits: torch.Tensor, ctx: SampleContext) -> torch.Tensor:
        mail, self._mail = self._mail, _NO_MAIL
        index_np = np.full(len(ctx.rows_np), _ANY, dtype=np.int32)
        index_np[self._used_np[ctx.rows_np]] = np.arange(len(mail.rows_np), dtype=np.int32)
        masks = self._device.upload(mail.words_np)
        self._ops.apply_token_mask(logits, masks, self._device.upload(index_np))
        return logits

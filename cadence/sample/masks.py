"""Rows that choose only among tokens which the host names, forward by forward."""

from __future__ import annotations

import numpy as np
import torch

from cadence.core.contract.step import NewRow
from cadence.core.contract.token_masks import TokenMasks
from cadence.core.grammar import GRAMMAR
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
        self._first_np = np.zeros(num_rows, dtype=np.int64)  # of the masks that are posted, a row's first ...
        self._count_np = np.zeros(num_rows, dtype=np.int64)  # ... and how many it has
        self._mail = _NO_MAIL

    def add(self, row: int, request: NewRow) -> None:
        self._used_np[row] = GRAMMAR in request.payloads

    def remove(self, row: int) -> None:
        self._used_np[row] = False

    def flush(self) -> None:
        """Masks come by mail."""

    def active(self, rows_np: np.ndarray) -> bool:
        return bool(self._used_np[rows_np].any())

    def post(self, mail: TokenMasks) -> None:
        self._mail = mail

    def apply(self, logits: torch.Tensor, ctx: SampleContext) -> torch.Tensor:
        """In place. The first line of a row has its first mask, and so on; lines after its last are padding."""
        mail, self._mail = self._mail, _NO_MAIL
        index_np = self._mask_of_line(ctx.rows_np, mail.rows_np)
        masks = self._device.upload(mail.words_np)
        self._ops.apply_token_mask(logits, masks, self._device.upload(index_np))
        return logits

    def _mask_of_line(self, rows_np: np.ndarray, posted_np: np.ndarray) -> np.ndarray:
        """Rows of lines [L], and of masks [M] -> [L] int32"""
        self._count_np[posted_np] = 0
        np.add.at(self._count_np, posted_np, 1)
        self._first_np[posted_np[::-1]] = np.arange(len(posted_np) - 1, -1, -1)
        place_np = _places(rows_np)
        has_np = self._used_np[rows_np] & (place_np < self._count_np[rows_np])
        index_np: np.ndarray = np.where(has_np, self._first_np[rows_np] + place_np, _ANY).astype(np.int32)
        return index_np


def _places(rows_np: np.ndarray) -> np.ndarray:
    """[L] of which each one's equals stand one after the other -> how many stand before it"""
    here_np = np.arange(len(rows_np))
    starts_np = np.where(np.diff(rows_np, prepend=-1) != 0, here_np, 0)
    places_np: np.ndarray = here_np - np.maximum.accumulate(starts_np)
    return places_np

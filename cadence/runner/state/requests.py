"""The rows: every running request's tokens and lengths, on the device, until it finishes or is preempted."""

from __future__ import annotations

import torch

from cadence.core.step import NewRow
from cadence.device.base import Device
from cadence.device.staged import RowLists, RowScalars


class RequestRows:
    """Tokens and lengths per row. The device advances them itself; the host writes only when a row begins."""

    def __init__(self, device: Device, num_rows: int, max_model_len: int) -> None:
        # One column more than the model's length: the token sampled at the very end needs a place to land.
        self._tokens = RowLists(device, num_rows, max_model_len + 1)
        self._scalars = RowScalars(device, num_rows, {"num_computed": "i32", "prompt_len": "i32"})

    @property
    def tokens(self) -> torch.Tensor:
        """[num_rows, max_model_len + 1] int32"""
        return self._tokens.table

    @property
    def num_computed(self) -> torch.Tensor:
        """[num_rows] int32: tokens whose KV is in the cache"""
        return self._scalars.get("num_computed")

    @property
    def prompt_len(self) -> torch.Tensor:
        """[num_rows] int32"""
        return self._scalars.get("prompt_len")

    def add(self, row: int, request: NewRow) -> None:
        self._tokens.write(row, 0, request.token_ids_np)
        self._scalars.set(row, num_computed=request.num_computed, prompt_len=request.prompt_len)

    def remove(self, row: int) -> None:
        """Nothing to give back: the row is overwritten by its next owner."""

    def flush(self) -> None:
        self._tokens.flush()
        self._scalars.flush()

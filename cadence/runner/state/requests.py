"""The rows: every running request's tokens and lengths, on the device, until it finishes or is preempted."""

from __future__ import annotations

import numpy as np
import torch

from cadence.core.contract.step import IntArray, NewRow
from cadence.device.base import Device
from cadence.device.staged import RowLists, RowScalars
from cadence.kernels.interface.row_ops import MOST_STOPS, RowState

_COLUMNS = {
    "num_computed": "i32",
    "prompt_len": "i32",
    "min_len": "i32",
    "max_len": "i32",
    "quiet": "i32",
    "num_drafts": "i32",
}
_NO_STOP = -1
_NO_STOPS_NP: IntArray = np.full(MOST_STOPS, _NO_STOP, dtype=np.int32)


class RequestRows:
    """Tokens and lengths per row. The device advances them itself; the host writes only when a row begins or ends.

    A row without a request is quiet. The last row never has one: padding names it.
    """

    def __init__(self, device: Device, num_rows: int, max_model_len: int) -> None:
        self._device = device
        # One column more than the model's length: the token sampled at the very end needs a place to land.
        self._tokens = RowLists(device, num_rows, max_model_len + 1)
        self._stops = RowLists(device, num_rows, MOST_STOPS)
        self._scalars = RowScalars(device, num_rows, _COLUMNS)
        for row in range(num_rows):
            self.remove(row)
        self.state = RowState(
            tokens=self._tokens.table,
            num_computed=self._scalars.get("num_computed"),
            min_len=self._scalars.get("min_len"),
            max_len=self._scalars.get("max_len"),
            quiet=self._scalars.get("quiet"),
            num_drafts=self._scalars.get("num_drafts"),
            stops=self._stops.table,
        )
        # The same, where the device's memory is the host's.
        self._quiet_np, self._num_drafts_np = (_on_host(column) for column in (self.state.quiet, self.state.num_drafts))
        self.quiet_row = num_rows - 1
        self.prompt_len = self._scalars.get("prompt_len")  # [num_rows] int32

    @property
    def tokens(self) -> torch.Tensor:
        """[num_rows, max_model_len + 1] int32"""
        return self._tokens.table

    def num_quiet(self, rows_np: np.ndarray) -> int:
        """Of those rows, where the device's memory is the host's."""
        return int(self._quiet_np[rows_np].sum())

    def num_drafts(self, rows_np: np.ndarray) -> IntArray:
        """Of each of those rows, where the device's memory is the host's."""
        return self._num_drafts_np[rows_np]

    def drafts(self, rows: torch.Tensor, most: int) -> tuple[torch.Tensor, torch.Tensor]:
        """rows [n] int64 -> the drafts of each [n, most], of which there are so many [n]"""
        counts, first = self.state.num_drafts[rows], self.state.num_computed[rows].long() + 1
        places = first[:, None] + torch.arange(most, device=rows.device)
        return self.tokens[rows[:, None], places.clamp(max=self.tokens.shape[1] - 1)], counts

    def give(self, given: list[tuple[int, list[int]]]) -> None:
        """(row, drafts) of rows that have these from now on, unless they have ended. They lie after the newest token,
        and where that is only the device may know."""
        if not given:
            return
        counts_np = np.array([len(drafts) for _, drafts in given], dtype=np.int32)
        drafts_np = np.zeros((len(given), int(counts_np.max())), dtype=np.int32)
        for line_np, (_, drafts) in zip(drafts_np, given, strict=True):
            line_np[: len(drafts)] = drafts
        rows_np = np.array([row for row, _ in given], dtype=np.int64)
        self.put_drafts(*map(self._device.upload, (rows_np, drafts_np, counts_np)))

    def put_drafts(self, rows: torch.Tensor, drafts: torch.Tensor, counts: torch.Tensor) -> None:
        """rows [n] int64, their drafts [n, most], of which there are so many [n]; rows that have ended get none"""
        state, last = self.state, self.tokens.shape[1] - 1
        counts = torch.where(state.quiet[rows] == 0, counts, 0)
        offsets = torch.arange(drafts.shape[1], device=rows.device)
        places = (state.num_computed[rows].long()[:, None] + 1 + offsets).clamp(max=last)
        kept = self.tokens[rows[:, None], places]
        self.tokens[rows[:, None], places] = torch.where(offsets < counts[:, None], drafts, kept)
        state.num_drafts[rows] = counts

    def add(self, row: int, request: NewRow) -> None:
        self._tokens.write(row, 0, request.token_ids_np)
        if request.samples:  # no other row is asked whether a token ends it
            self._stops.write(row, 0, _stops_np(request.stop_token_ids))
        self._scalars.set(
            row,
            num_computed=request.num_computed,
            prompt_len=request.prompt_len,
            min_len=request.prompt_len + request.sampling.min_tokens,
            max_len=request.max_len,
            quiet=0,
            num_drafts=0,
        )

    def remove(self, row: int) -> None:
        self._scalars.set(row, num_computed=1, quiet=1, num_drafts=0)

    def flush(self) -> None:
        self._tokens.flush()
        self._stops.flush()
        self._scalars.flush()


def _stops_np(token_ids: frozenset[int]) -> IntArray:
    """[MOST_STOPS], not to be written to"""
    if not token_ids:
        return _NO_STOPS_NP
    stops_np = _NO_STOPS_NP.copy()
    known = sorted(token_ids)[:MOST_STOPS]
    stops_np[: len(known)] = known
    return stops_np


def _on_host(column: torch.Tensor) -> IntArray:
    """The memory itself; nothing of a device that has its own."""
    return column.numpy() if column.device.type == "cpu" else np.zeros(0, dtype=np.int32)

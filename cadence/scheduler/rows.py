"""The rows: who has which, and the counters of every row as columns.

Columns make a step over all running rows a handful of array operations, whatever their number.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from cadence.scheduler.request_state import NO_ROW, RequestState

Column = npt.NDArray[np.int64]


class RowTable:
    """Counters of a row are meaningful from its admission until it is given back."""

    def __init__(self, num_rows: int) -> None:
        def column() -> Column:
            return np.zeros(num_rows, dtype=np.int64)

        self.known_np = column()  # [rows] tokens whose value the host knows
        self.length_np = column()  # [rows] known tokens and placeholders: what the device will hold
        self.limit_np = column()  # [rows] most tokens the request may ever have
        self.computed_np = column()  # [rows] tokens computed once every plan sent has run
        self.confirmed_np = column()  # [rows] tokens computed by forwards that have returned
        self.capacity_np = column()  # [rows] tokens its blocks can hold
        self.registered_np = column()  # [rows] leading blocks that are in the prefix index
        self.release_at_np = column()  # [rows] confirmed tokens at which a block leaves its window
        self.last_step_np = column()  # [rows] id of the last step naming the row
        self.needs_host_np = np.zeros(num_rows, dtype=np.bool_)  # [rows] the host has a say between two forwards
        self.streams_np = np.zeros(num_rows, dtype=np.bool_)  # [rows] somebody reads its tokens as they come
        self.requests: dict[int, RequestState] = {}  # by row
        self._free = list(range(num_rows - 1, -1, -1))

    @property
    def num_free(self) -> int:
        return len(self._free)

    def take(self, request: RequestState) -> int:
        row = self._free.pop()
        self.requests[row] = request
        request.row = row
        return row

    def give_back(self, request: RequestState) -> None:
        """The last step naming the row has returned."""
        del self.requests[request.row]
        self._free.append(request.row)
        request.row = NO_ROW

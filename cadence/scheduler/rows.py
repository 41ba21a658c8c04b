"""The rows: which request has which, and the counters of every row as columns.

Columns make a step over all running rows a handful of array operations, whatever their number. Only the verbs below
write them. What is booked for steps in flight is an upper bound, until it is settled.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from cadence.scheduler.request_state import NO_ROW, RequestState

Column = npt.NDArray[np.int64]


class RowTable:
    """Counters of a row are meaningful from its beginning until it is released."""

    def __init__(self, num_rows: int) -> None:
        def column() -> Column:
            return np.zeros(num_rows, dtype=np.int64)

        self.known_np = column()  # [rows] tokens whose value the host knows
        self.length_np = column()  # [rows] known tokens and placeholders: what the device will hold at most
        self.due_np = column()  # [rows] forwards in flight that bring it a token at least, unless it ends
        self.limit_np = column()  # [rows] most tokens the request may ever have
        self.computed_np = column()  # [rows] tokens computed once every plan sent has run, at most
        self.confirmed_np = column()  # [rows] tokens computed by forwards that have returned
        self.capacity_np = column()  # [rows] tokens its blocks can hold
        self.registered_np = column()  # [rows] leading blocks that are in the prefix index
        self.release_at_np = column()  # [rows] confirmed tokens at which a block leaves its window
        self.last_step_np = column()  # [rows] id of the last step naming the row
        self.needs_host_np = np.zeros(num_rows, dtype=np.bool_)  # [rows] the host has a say between two forwards
        self.waits_np = np.zeros(num_rows, dtype=np.bool_)  # [rows] its tokens are chosen when mail is there
        self.samples_np = np.ones(num_rows, dtype=np.bool_)  # [rows] it gets tokens after its prompt
        self.streams_np = np.zeros(num_rows, dtype=np.bool_)  # [rows] a client reads its tokens as they come
        self.requests: dict[int, RequestState] = {}  # by row
        self._free = list(range(num_rows - 1, -1, -1))

    @property
    def count(self) -> int:
        return len(self.known_np)

    @property
    def num_free(self) -> int:
        return len(self._free)

    def begin(self, request: RequestState, cached: int, end: int, step_id: int) -> bool:
        """A request takes a row; step `step_id` computes its tokens from `cached` up to `end` -> whether it samples."""
        row = request.row = self._free.pop()
        self.requests[row] = request
        request.begins_at, known = cached, len(request.tokens)
        samples = request.samples and end == known
        self.known_np[row] = known
        self.length_np[row] = known + samples
        self.due_np[row] = samples
        self.limit_np[row] = request.max_len
        self.computed_np[row] = end
        self.confirmed_np[row] = cached
        self.last_step_np[row] = step_id
        self.needs_host_np[row] = request.needs_host
        self.waits_np[row] = request.waits
        self.samples_np[row] = request.samples
        self.streams_np[row] = request.streams
        return samples

    def book(self, rows_np: Column, tokens_np: Column, drafts_np: Column, step_id: int) -> Column:
        """The first forward of step `step_id` computes so many tokens [n] of these rows [n], and where that is all they
        have, up to so many drafts [n] more -> [n] how many tokens each samples at most: 0, or 1 + drafts."""
        ends_np = self.computed_np[rows_np] + tokens_np
        samples_np = (ends_np == self.length_np[rows_np]) & self.samples_np[rows_np]
        lines_np: Column = samples_np * np.where(tokens_np == 1, 1 + drafts_np, 1)
        self.computed_np[rows_np] = ends_np + np.maximum(lines_np - 1, 0)
        self.length_np[rows_np] += lines_np
        self.due_np[rows_np] += samples_np
        self.last_step_np[rows_np] = step_id
        return lines_np

    def book_more(self, rows_np: Column, num_forwards: int, width: int) -> None:
        """Later forwards of the same step bring these rows [n], which sample, up to `width` tokens each."""
        self.length_np[rows_np] += num_forwards * width
        self.computed_np[rows_np] += num_forwards * width
        self.due_np[rows_np] += num_forwards

    def settle(self, rows_np: Column, num_forwards: int, got_np: Column | int, unused_np: Column | int) -> None:
        """So many forwards in flight have returned or were given up. Of what was booked for rows [n] with them, so many
        tokens [n] came, and so many [n] will not."""
        self.known_np[rows_np] += got_np
        self.length_np[rows_np] -= unused_np
        self.computed_np[rows_np] -= unused_np
        self.due_np[rows_np] -= num_forwards

    def stop(self, row: int) -> None:
        """A stop rule ended the request: it keeps only some of the tokens that came."""
        self.known_np[row] = len(self.requests[row].tokens)

    def confirm(self, rows_np: Column, tokens_np: Column) -> None:
        """The first tokens [n] of rows [n] are computed."""
        self.confirmed_np[rows_np] = tokens_np

    def hold(self, row: int, capacity: int, release_at: int, registered: int) -> None:
        """Of a row that has begun, as `grow`, `release_later` and `register` have them."""
        self.capacity_np[row] = capacity
        self.release_at_np[row] = release_at
        self.registered_np[row] = registered

    def grow(self, row: int, capacity: int) -> None:
        """Its blocks hold `capacity` tokens now."""
        self.capacity_np[row] = capacity

    def register(self, rows_np: Column | int, blocks_np: Column | int) -> None:
        """The first blocks [n] of rows [n] are in the prefix index now."""
        self.registered_np[rows_np] = blocks_np

    def release_later(self, row: int, tokens: int) -> None:
        """With so many tokens confirmed, the next of its blocks leaves its window."""
        self.release_at_np[row] = tokens

    def release(self, request: RequestState) -> None:
        """The last step naming the row has returned."""
        del self.requests[request.row]
        self._free.append(request.row)
        request.row = NO_ROW

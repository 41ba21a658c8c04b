"""How far a model that drafts has come in each row. Where no drafts are asked for, it computes nothing and lags;
before its next drafts it catches up."""

from __future__ import annotations

import numpy as np

from cadence.scheduler.feature import Books
from cadence.scheduler.rows import Column

_KEEPS_UP = 2**62  # tokens


class ProposerProgress:
    def __init__(self, num_rows: int) -> None:
        self._has_np: Column = np.zeros(num_rows, dtype=np.int64)  # [rows] tokens it surely has; _KEEPS_UP while used

    def begin(self, row: int) -> None:
        self._has_np[row] = _KEEPS_UP

    def pause(self, books: Books, rows_np: Column) -> None:
        """A plan makes no drafts for these rows [n]: it has what was known before the plan, but for the last token."""
        self._has_np[rows_np] = np.minimum(self._has_np[rows_np], books.rows.known_np[rows_np] - 1)

    def catch_up(self, books: Books, rows_np: Column) -> list[tuple[int, int]]:
        """A plan makes drafts for these rows [n] -> (row, tokens that it may lack and computes first), as far as a step
        has room; a row for which there is none goes without drafts until then."""
        rows, room, found = books.rows, books.budget.step, []
        for row in rows_np[self._has_np[rows_np] < _KEEPS_UP].tolist():
            most = int(min(rows.computed_np[row], rows.limit_np[row])) + 1
            lacks = most - int(self._has_np[row])
            if lacks <= room:
                room -= lacks
                found.append((row, lacks))
                self._has_np[row] = _KEEPS_UP
        return found

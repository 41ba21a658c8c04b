"""Who decodes in which step, where steps go through stages one after another.

A row decodes again only when its last token is there, and that takes as many steps as there are stages. So the rows
that decode take turns, one part of them in each step: while a stage computes one step, another computes the next.
"""

from __future__ import annotations

import numpy as np

from cadence.scheduler.rows import Column, RowTable


class StageTurns:
    def __init__(self, num_stages: int, rows: RowTable) -> None:
        """num_stages: 1 = all rows decode in every step"""
        self._num_stages = num_stages
        self._rows = rows

    def limit(self, rows_np: Column, tokens_np: Column, step_id: int) -> bool:
        """Rows [n] want so many tokens [n]; those whose turn it is not get none -> whether there are such."""
        if self._num_stages == 1:
            return False
        decodes_np = np.flatnonzero(tokens_np == 1)
        if len(decodes_np) < 2:
            return False
        last_np = self._rows.last_step_np[rows_np[decodes_np]]
        due_np = decodes_np[np.argsort(last_np, kind="stable")]  # who has waited for the longest first
        most = -(-len(decodes_np) // self._num_stages)
        settled = int((last_np <= step_id - self._num_stages).sum())
        chosen_np = due_np[: min(most, settled or most)]
        held_np = np.setdiff1d(decodes_np, chosen_np)
        tokens_np[held_np] = 0
        return len(held_np) > 0

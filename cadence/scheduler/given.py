"""Drafts that the host gives: tokens which a constraint forces need no proposer."""

from __future__ import annotations

import numpy as np

from cadence.scheduler.budget import TokenBudget
from cadence.scheduler.drafts import Drafts
from cadence.scheduler.kv.manager import KVManager
from cadence.scheduler.plan import PlanDraft
from cadence.scheduler.rows import Column, RowTable

_MOST_UNEVEN = 8  # rows; where only even forwards are recorded, an uneven one of more rows takes too long to launch


class GivenDrafts:
    """They are verified like any other: what must come is what will be chosen. As far as a step has room for lines and
    blocks are free; not beside a model that drafts, which would lack their keys, and not where the host has a say
    before each token."""

    def __init__(self, budget: TokenBudget, drafts: Drafts, rows: RowTable, kv: KVManager) -> None:
        self._budget = budget
        self._drafts = drafts
        self._rows = rows
        self._kv = kv
        self._most_lines = rows.num_free * (1 + drafts.most)  # of a forward: what the device has room for

    def run(self, draft: PlanDraft, rows_np: Column, tokens_np: Column, waiting: bool) -> Column:
        """Rows [n] compute so many tokens [n], those that decode with drafts -> [n] the drafts of each that decodes.
        waiting: others may be admitted to the step."""
        drafts_np: Column = np.full(len(rows_np), draft.width - 1, dtype=np.int64)
        decodes_np = tokens_np == 1
        waiting_np = self._rows.waits_np[rows_np] & decodes_np & ~self._rows.needs_host_np[rows_np]
        if self._drafts.reserve or not waiting_np.any() or (self._drafts.padded and len(rows_np) > _MOST_UNEVEN):
            return drafts_np
        lines = len(rows_np) + (draft.width - 1) * int(decodes_np.sum()) + waiting * self._rows.num_free
        room = min(self._budget.step - int(tokens_np.sum()) - lines, self._most_lines - lines)
        room = min(room, (self._kv.num_free - len(rows_np)) * self._kv.block_size // 2)
        for index in np.flatnonzero(waiting_np).tolist():
            row = int(rows_np[index])
            given = self._ahead(row)[: max(room, 0)]
            if len(given) >= draft.width:
                room -= len(given)
                draft.given.append((row, given))
                drafts_np[index] = len(given)
        return drafts_np

    def _ahead(self, row: int) -> list[int]:
        """Tokens that must come behind what is in flight, within the row's limit."""
        rows = self._rows
        in_flight = int(rows.length_np[row] - rows.known_np[row])
        if in_flight > 1:
            return []  # nobody knows how many of these will be kept
        left = int(rows.limit_np[row] - rows.length_np[row]) - 1
        return rows.requests[row].ahead()[in_flight:][: max(left, 0)]

"""Tokens that a constraint forces: they become drafts, without a proposer."""

from __future__ import annotations

import numpy as np

from cadence.core.grammar import GRAMMAR
from cadence.scheduler.feature import Books, Decodes
from cadence.scheduler.features.grammar.output import output_of
from cadence.scheduler.plan import PlanDraft
from cadence.scheduler.rows import RowTable

_MOST_UNEVEN = 8  # rows; where only even forwards are recorded, an uneven one of more rows takes too long to launch


def force_drafts(draft: PlanDraft, books: Books, decodes: Decodes) -> None:
    """Tokens which must come are drafts that the host gives, verified like any other: they are what will be chosen. As
    far as a step has room for lines, states have room for what they keep of drafts, and blocks are free; not beside a
    model that drafts, which would lack their keys, and not where the host has a say before each token."""
    rows, rows_np, budget = books.rows, decodes.rows_np, books.budget
    decodes_np = decodes.tokens_np == 1
    waiting_np = rows.waits_np[rows_np] & decodes_np & ~rows.needs_host_np[rows_np]
    if budget.runs.reserve or not waiting_np.any() or (budget.runs.padded and len(rows_np) > _MOST_UNEVEN):
        return
    room, most = _room(draft, books, decodes), budget.runs.width - 1 if budget.runs.strict else budget.step
    given = []
    for index in np.flatnonzero(waiting_np).tolist():
        row = int(rows_np[index])
        ahead = _ahead(rows, row)[: max(min(room, most), 0)]
        if len(ahead) >= draft.width:
            room -= len(ahead)
            given.append((row, ahead))
            decodes.drafts_np[index] = len(ahead)
    if given:
        draft.payloads[GRAMMAR] = given


def _room(draft: PlanDraft, books: Books, decodes: Decodes) -> int:
    """Drafts more than rows have that the step has lines, tokens and blocks for."""
    rows, kv, num_rows = books.rows, books.kv, len(decodes.rows_np)
    lines = num_rows + (draft.width - 1) * int((decodes.tokens_np == 1).sum()) + decodes.waiting * rows.num_free
    room = min(books.budget.step - int(decodes.tokens_np.sum()), rows.count * books.budget.runs.width) - lines
    free = kv.num_free // max(kv.num_growing, 1)  # blocks of tokens: each takes one of every group that grows
    return min(room, (free - num_rows) * kv.block_size // 2)


def _ahead(rows: RowTable, row: int) -> list[int]:
    """Tokens that must come after what is in flight, within the row's limit."""
    in_flight = int(rows.length_np[row] - rows.known_np[row])
    if in_flight > 1:
        return []  # it is not known how many of these will be kept
    left = int(rows.limit_np[row] - rows.length_np[row]) - 1
    return output_of(rows.requests[row]).ahead()[in_flight:][: max(left, 0)]

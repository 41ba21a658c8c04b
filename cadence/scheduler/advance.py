"""Gives running requests the tokens they lack, as far as the step's budget and blocks go."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cadence.core.contract.step import NewBlocks
from cadence.scheduler.feature import Books, Decodes, HostFeature, with_own
from cadence.scheduler.kv.manager import KVManager
from cadence.scheduler.pace import PacePolicy, PromptRoom
from cadence.scheduler.plan import PlanDraft
from cadence.scheduler.preempt import Preemption
from cadence.scheduler.request_state import RequestState, Status
from cadence.scheduler.rows import Column, RowTable
from cadence.scheduler.running import RunningList
from cadence.scheduler.sharing import Precedence
from cadence.scheduler.turns import StageTurns


class Advance:
    """Arrays over all running rows; Python only for rows that need blocks or have filled one."""

    def __init__(
        self,
        books: Books,
        pace: PacePolicy,
        running: RunningList,
        preemption: Preemption,
        features: Sequence[HostFeature],
    ) -> None:
        self._books = books
        self._budget = books.budget
        self._pace = pace
        self._running = running
        self._rows = books.rows
        self._kv = books.kv
        self._preemption = preemption
        self._turns = StageTurns(books.budget.turns, books.rows)
        self._widening, self._following = with_own(features, "widen"), with_own(features, "booked")
        self._cutting = with_own(features, "cut")

    def run(self, draft: PlanDraft, waiting: bool, order: Precedence) -> PromptRoom:
        """Fills the draft; returns what room is left for prompts. waiting: a request may want it."""
        rows_np = self._running.rows_np()
        tokens_np = self._wanted(rows_np)
        if order.some_yield:
            for index in np.flatnonzero(tokens_np > 1).tolist():
                tokens_np[index] *= not order.yields(self._running[index])
        draft.has_turns = self._turns.limit(rows_np, tokens_np, draft.step_id)
        room = self._room(rows_np, tokens_np, waiting, order.is_shared)
        tokens_np = self._limited(draft, room, tokens_np, order)
        self._cut(draft, rows_np, tokens_np)
        drafts_np: Column = np.zeros(len(rows_np), dtype=np.int64)
        for feature in self._widening:
            feature.widen(draft, self._books, Decodes(rows_np, tokens_np, drafts_np, waiting))
        ends_np = self._rows.computed_np[rows_np] + tokens_np + (tokens_np == 1) * drafts_np
        last_np = self._rows.limit_np[rows_np] - 1  # the last token a request may have is never computed
        ends_np = np.minimum(ends_np + self._budget.runs.reserve, last_np)
        for index in np.flatnonzero(ends_np > self._rows.capacity_np[rows_np]).tolist():
            if index >= len(self._running):
                break  # preempted, as are all after it
            if not self._grow(draft, self._running[index], int(ends_np[index])):
                tokens_np[index] = 0
        chosen_np = np.flatnonzero(tokens_np[: len(self._running)])
        self._book(draft, Decodes(rows_np[chosen_np], tokens_np[chosen_np], drafts_np[chosen_np], waiting))
        room.tokens = min(room.tokens, self._budget.step - draft.num_tokens)
        return room

    def _wanted(self, rows_np: Column) -> Column:
        """[n] tokens that each row lacks."""
        rows = self._rows
        wanted_np: Column = np.minimum(rows.length_np[rows_np] - rows.computed_np[rows_np], self._budget.chunk)
        least_np = rows.known_np[rows_np] + rows.due_np[rows_np]  # tokens, if no draft is kept
        wanted_np *= least_np < rows.limit_np[rows_np]  # the last token a request may have is never computed
        return wanted_np

    def _room(self, rows_np: Column, wanted_np: Column, waiting: bool, is_shared: bool) -> PromptRoom:
        """The step is paced if it may have prompt tokens, and a row decodes whose reader waits for each token, or a
        tenant for the step's end."""
        if self._pace.is_on and (waiting or wanted_np.max(initial=0) > 1):
            decodes_np = rows_np[wanted_np == 1]
            if is_shared or self._rows.streams_np[decodes_np].any():
                return self._pace.paced_room(self._budget.step - len(decodes_np), len(decodes_np))
        return self._pace.room(self._budget.step)

    def _limited(self, draft: PlanDraft, room: PromptRoom, wanted_np: Column, order: Precedence) -> Column:
        """[n] tokens for each row, the first ones served first; in a paced step decodes before prompts."""
        if room.is_paced:
            for index in np.flatnonzero(wanted_np > 1).tolist():
                request, wanted = self._running[index], int(wanted_np[index])
                if order.is_brief(request):
                    room.shorten()
                wanted_np[index] = granted = room.grant(wanted, int(self._rows.computed_np[request.row]))
                draft.short |= granted < wanted
        if wanted_np.sum() > self._budget.step:
            before_np = np.cumsum(wanted_np) - wanted_np
            wanted_np = np.clip(self._budget.step - before_np, 0, wanted_np)
            draft.short = True
        return wanted_np

    def _cut(self, draft: PlanDraft, rows_np: Column, tokens_np: Column) -> None:
        """tokens [n], as far as features let them go; where a row gets none, it sits the step out."""
        for feature in self._cutting:
            for row in feature.cut_rows:
                for index in np.flatnonzero(rows_np == row).tolist():
                    tokens, start = int(tokens_np[index]), int(self._rows.computed_np[row])
                    spare = self._budget.step - int(tokens_np.sum())
                    request = self._rows.requests[row]
                    if tokens and start < request.prompt_len:
                        most = start + min(tokens + max(spare, 0), self._budget.chunk)
                        tokens_np[index] = feature.cut(draft, request, start, start + tokens, most) - start

    def _grow(self, draft: PlanDraft, request: RequestState, num_tokens: int) -> bool:
        kv = self._kv
        if not self._preemption.make_room(draft, request, kv.blocks_to_grow(request.blocks, num_tokens)):
            return False
        grow_row(draft, self._rows, kv, request, num_tokens)
        return True

    def _book(self, draft: PlanDraft, decodes: Decodes) -> None:
        rows, rows_np = self._rows, decodes.rows_np
        computed_np = rows.computed_np[rows_np]
        lines_np = rows.book(rows_np, decodes.tokens_np, decodes.drafts_np, draft.step_id)
        for feature in self._following:
            feature.booked(draft, self._books, decodes)
        draft.set_running(rows_np, decodes.tokens_np, computed_np, lines_np)
        # A known token that did not end its request is computed by the first forward of this plan at the latest.
        register_filled(rows, self._kv, rows_np, np.minimum(rows.computed_np[rows_np], rows.known_np[rows_np]))


def grow_row(draft: PlanDraft, rows: RowTable, kv: KVManager, request: RequestState, num_tokens: int) -> None:
    """Makes the tables of a row hold `num_tokens`. The caller has checked that there are blocks."""
    for group, start, block_ids in kv.grow(request.blocks, num_tokens):
        draft.blocks.append(NewBlocks(request.row, group, start, block_ids))
    rows.grow(request.row, kv.capacity(request.blocks))


def register_filled(rows: RowTable, kv: KVManager, rows_np: Column, tokens_np: Column) -> None:
    """Lists blocks of rows [n] in the prefix index that their first tokens [n], all known and computed, fill."""
    filled_np = tokens_np // kv.block_size
    registered_np = rows.registered_np[rows_np]
    due_np = (filled_np > registered_np).nonzero()[0]
    columns = (rows_np[due_np], registered_np[due_np], filled_np[due_np])
    for row, registered, filled in zip(*(column.tolist() for column in columns), strict=True):
        request = rows.requests[row]
        if request.status is Status.RUNNING:
            kv.register(request.blocks, request.tokens, registered, filled)
    rows.register(columns[0], columns[2])

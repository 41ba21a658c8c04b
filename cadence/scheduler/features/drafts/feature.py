"""The host half of the feature `drafts`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from cadence.core.contract.drafts import DRAFTS, DraftChanges
from cadence.core.contract.request import EngineRequest
from cadence.core.contract.step import NO_TOKEN, IntArray, StepPlan, StepResult
from cadence.core.draft_stats import DraftStats, Run
from cadence.scheduler.feature import Books, Decodes, HostFeature
from cadence.scheduler.features.drafts.policy import DraftPolicy
from cadence.scheduler.features.drafts.progress import ProposerProgress
from cadence.scheduler.news import News
from cadence.scheduler.plan import PlanDraft
from cadence.scheduler.request_state import RequestState
from cadence.scheduler.step_in_flight import StepInFlight


class HostDrafts(HostFeature):
    """Says of a row how many drafts it may have, sends changes of that with plans, and learns how many were kept."""

    name = DRAFTS

    def __init__(self, policy: DraftPolicy, num_rows: int) -> None:
        self._policy = policy
        self._progress = ProposerProgress(num_rows)
        self._stats = DraftStats()
        self._unsent: dict[int, int] = {}  # by row: most drafts, of which no device has heard

    def begin(self, request: RequestState, draft: PlanDraft) -> int:
        """Where the host has a say, it sees no token that may not come: there are no drafts."""
        asked = 0 if request.needs_host else request.request.params.num_draft_tokens(self._policy.most)
        self._progress.begin(request.row)
        self._unsent.pop(request.row, None)
        return self._policy.begin(request.row, asked)

    def widen(self, draft: PlanDraft, books: Books, decodes: Decodes) -> None:
        """Rows that decode have as many drafts as are worth it, if the step has room for them."""
        rows_np = decodes.rows_np[decodes.tokens_np == 1]
        changes, width = self._policy.choose(rows_np)
        changes, self._unsent = [*self._unsent.items(), *changes], {}
        if changes:
            draft.payloads.setdefault(DRAFTS, DraftChanges()).most.extend(changes)
        width = self._policy.width(width - 1)
        if int(decodes.tokens_np.sum()) + (width - 1) * len(rows_np) <= books.budget.step:
            draft.width = width
        decodes.drafts_np[:] = draft.width - 1

    def dropped(self, draft: PlanDraft) -> None:
        if DRAFTS in draft.payloads:
            self._unsent = dict(draft.payloads[DRAFTS].most)

    def booked(self, draft: PlanDraft, books: Books, decodes: Decodes) -> None:
        if not self._policy.falls_behind:
            return
        rows_np = decodes.rows_np[decodes.tokens_np == 1]
        if draft.width == 1:
            self._progress.pause(books, rows_np)
        elif found := self._progress.catch_up(books, rows_np):
            draft.payloads[DRAFTS] = replace(draft.payloads.get(DRAFTS, DraftChanges()), catch_up=found)

    def extend(self, draft: PlanDraft, books: Books) -> None:
        """Rows that have just begun have drafts from their second forward on, if it has room for them."""
        width = self._policy.width(max((row.payloads[DRAFTS] for row in draft.begun), default=0))
        if width * len(draft.sampling_np) <= books.budget.step:
            draft.width = max(draft.width, width)

    def reconcile(self, step: StepInFlight, result: StepResult, news: News, books: Books) -> None:
        """Drafts verified and kept, forward by forward."""
        drafts_np, tokens_np = _proposed(step, result.num_verified_np), (result.token_ids_np != NO_TOKEN).sum(axis=2)
        num_drafts = int(drafts_np.sum())
        self._policy.observe(step.returning_np, drafts_np, tokens_np)
        if not num_drafts:
            return
        step.num_verified += num_drafts
        columns = zip(step.returning_np.tolist(), drafts_np.T.tolist(), tokens_np.T.tolist(), strict=True)
        for row, drafts, tokens in columns:
            if row in news:
                news[row].runs = _kept_runs(drafts, tokens, len(news[row].new_token_ids))
        self._stats = self._stats.add(run for update in news.values() for run in update.runs)

    def observe_time(self, plan: StepPlan, seconds: float, num_verified: int) -> None:
        num_rows, num_forwards = len(plan.rows_np), plan.num_forwards
        tokens = num_rows * plan.width if self._policy.padded else num_rows + num_verified / num_forwards
        self._policy.observe_time(num_rows, num_forwards, tokens, seconds)

    def stats(self, requests: Iterable[RequestState], preparing: Sequence[EngineRequest]) -> DraftStats:
        return self._stats


def _proposed(step: StepInFlight, drafts_np: IntArray) -> IntArray:
    """Of the drafts verified [m, s], those that the host did not know to be right."""
    if not step.certain or step.num_returned:
        return drafts_np
    return np.where(np.isin(step.returning_np, step.certain), 0, drafts_np)


def _kept_runs(drafts: list[int], tokens: list[int], kept: int) -> list[Run]:
    """Of forwards that verified drafts [m] and brought tokens [m], those that brought the first `kept`."""
    runs = []
    for drafted, came in zip(drafts, tokens, strict=True):
        came = min(came, kept)
        kept -= came
        if came:
            runs.append((drafted, came))
    return runs

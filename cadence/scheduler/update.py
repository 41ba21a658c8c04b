"""What came back from a step meets what the host had booked. Only here are the two reconciled."""

from __future__ import annotations

import numpy as np

from cadence.core.step import PromptLogprobs, StepPlan, StepResult
from cadence.core.update import RequestUpdate
from cadence.scheduler.advance import register_filled
from cadence.scheduler.kv.manager import KVManager
from cadence.scheduler.request_state import RequestState, Status
from cadence.scheduler.rows import RowTable
from cadence.scheduler.stop import stop_verdict

News = dict[int, RequestUpdate]  # by row


def news_of(request: RequestState, new_token_ids: list[int]) -> RequestUpdate:
    return RequestUpdate(
        request.id,
        new_token_ids,
        (),
        (),
        None,
        None,
        request.num_cached,
        request.num_preemptions,
        request.first_scheduled_time,
    )


class Reconciler:
    """Rows whose request has ended since the plan was made are settled here: what they produced is dropped."""

    def __init__(self, rows: RowTable, kv: KVManager) -> None:
        self._rows = rows
        self._kv = kv

    def run(self, plan: StepPlan, result: StepResult) -> News:
        """News of each row. The caller ends requests whose news carry a finish reason."""
        news = self._take_tokens(plan, result)
        for row, logprobs in result.logprobs.items():
            if row in news:
                news[row].logprobs = (logprobs,)
        for row, part in result.prompt_logprobs.items():
            self._take_prompt_logprobs(news, row, part)
        self._confirm(plan)
        return news

    def _take_tokens(self, plan: StepPlan, result: StepResult) -> News:
        """Replaces a placeholder of each row that sampled by its token."""
        news: News = {}
        rows_np = plan.rows_np[plan.samples_np]
        self._rows.known_np[rows_np] += 1
        requests, finished = self._rows.requests, Status.FINISHED
        for row, token in zip(rows_np.tolist(), result.token_ids_np.tolist(), strict=True):
            request = requests[row]
            if request.status is finished:
                continue
            tokens = request.tokens
            tokens.append(token)
            news[row] = update = news_of(request, [token])
            if token in request.stop_ids or len(tokens) >= request.max_len:
                update.finish_reason, update.stop_reason = stop_verdict(request, token)
        return news

    def _take_prompt_logprobs(self, news: News, row: int, part: PromptLogprobs) -> None:
        """A request resumed after preemption computes its prompt again: what was reported is not reported twice."""
        request = self._rows.requests[row]
        known = request.next_prompt_logprob - part.start
        if request.status is Status.FINISHED or known >= len(part.ranks_np):
            return
        if known > 0:
            part = PromptLogprobs(
                request.next_prompt_logprob, part.token_ids_np[known:], part.logprobs_np[known:], part.ranks_np[known:]
            )
        request.next_prompt_logprob = part.start + len(part.ranks_np)
        if row not in news:
            news[row] = news_of(request, [])
        news[row].prompt_logprobs = (part,)

    def _confirm(self, plan: StepPlan) -> None:
        """The tokens of the plan are computed: blocks they filled can be shared, blocks behind a window freed."""
        rows, kv = self._rows, self._kv
        rows_np = plan.rows_np.astype(np.int64)
        confirmed_np = plan.num_computed_np + plan.num_tokens_np
        rows.confirmed_np[rows_np] = confirmed_np
        register_filled(rows, kv, rows_np)
        for index in np.flatnonzero(confirmed_np >= rows.release_at_np[rows_np]).tolist():
            row = int(rows_np[index])
            request = rows.requests[row]
            if request.status is Status.RUNNING:
                kv.release_outside(request.blocks, int(confirmed_np[index]))
                rows.release_at_np[row] = kv.next_release(request.blocks)

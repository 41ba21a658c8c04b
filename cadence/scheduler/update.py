"""Reconciles the results of a step with what the host had booked. Nothing else does."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from cadence.core.contract.step import NO_TOKEN, IntArray, PromptLogprobs, StepResult, TokenLogprobs
from cadence.core.contract.update import RequestUpdate, TokenUpdates
from cadence.scheduler.advance import register_filled
from cadence.scheduler.feature import Books, HostFeature, with_own
from cadence.scheduler.news import News, news_of
from cadence.scheduler.request_state import Status
from cadence.scheduler.rows import Column
from cadence.scheduler.step_in_flight import StepInFlight
from cadence.scheduler.stop import take_until_stop


class Reconciler:
    """Rows whose request has ended since the plan was made are settled here: what they produced is dropped."""

    def __init__(self, books: Books, features: Sequence[HostFeature]) -> None:
        self._books = books
        self._rows = books.rows
        self._kv = books.kv
        self._features = with_own(features, "reconcile")[::-1]
        self._tokens = TokenUpdates()  # of requests that the front knows by number, without other news
        self._num_messages = 0  # that took these along

    def take_tokens(self) -> TokenUpdates:
        """Tokens that are not in news. They come before the news returned so far; a request that was in those is from
        now on known by its number. A caller that never asks gets news of everything."""
        tokens, self._tokens = self._tokens, TokenUpdates()
        self._num_messages += 1
        return tokens

    def run(self, step: StepInFlight, result: StepResult) -> News:
        """News of each row from one part of a plan's result. The caller ends requests whose news say so."""
        news = self._take_tokens(step, result)
        for feature in self._features:
            feature.reconcile(step, result, news, self._books)
        for row, output in result.outputs:
            if isinstance(output, PromptLogprobs):
                self._take_prompt_logprobs(news, row, output)
            elif isinstance(output, TokenLogprobs) and row in news:
                _take_logprobs(news[row], output)
        self._confirm(step)
        step.num_returned += len(result.token_ids_np)
        return news

    def _take_tokens(self, step: StepInFlight, result: StepResult) -> News:
        """Replaces placeholders of each row that sampled by its tokens."""
        news: News = {}
        new_tokens, counts_np = _by_row(result.token_ids_np)
        rows, sampling_np, num_forwards = self._rows, step.returning_np, len(result.token_ids_np)
        rows.settle(sampling_np, num_forwards, got_np=counts_np, unused_np=step.booked(num_forwards) - counts_np)
        columns = (sampling_np, rows.known_np[sampling_np] >= rows.limit_np[sampling_np])
        requests, finished, messages = rows.requests, Status.FINISHED, self._num_messages
        special = self._with_more(step, result)
        numbers: list[int] = []
        plain: list[list[int]] = []  # new tokens, by numbers
        for row, full, new in zip(*(column.tolist() for column in columns), new_tokens, strict=True):
            request = requests[row]
            if request.status is finished or not new:
                continue
            if request.told_in < messages and not full and row not in special and request.stop_ids.isdisjoint(new):
                request.tokens += new
                numbers.append(request.number)
                plain.append(new)
                continue
            news[row] = update = news_of(request, new)
            request.told_in = min(request.told_in, messages)
            if full or not request.stop_ids.isdisjoint(new):
                update.finish_reason, update.stop_reason = take_until_stop(request, new)
                rows.stop(row)
            else:
                request.tokens.extend(new)
        self._tokens.extend(numbers, plain)
        return news

    def _with_more(self, step: StepInFlight, result: StepResult) -> Collection[int]:
        """Rows that may have other news than tokens."""
        if self._books.budget.runs.width > 1:
            return range(self._rows.count)
        return {*step.plan.waits, *result.errors, *(row for row, _ in result.outputs)}

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

    def _confirm(self, step: StepInFlight) -> None:
        """The tokens of these forwards are computed: blocks they filled can be shared, blocks before a window freed."""
        rows, kv, plan = self._rows, self._kv, step.plan
        rows_np, confirmed_np = step.returning_np, rows.known_np[step.returning_np] - 1  # all but the newest token
        if step.num_returned == 0 and len(rows_np) < len(plan.rows_np):
            ends_np = plan.num_computed_np.astype(np.int64) + plan.num_tokens_np
            ends_np[plan.num_samples_np > 0] = confirmed_np
            rows_np, confirmed_np = plan.rows_np.astype(np.int64), ends_np
        rows.confirm(rows_np, confirmed_np)
        register_filled(rows, kv, rows_np, confirmed_np)
        for index in np.flatnonzero(confirmed_np >= rows.release_at_np[rows_np]).tolist():
            row = int(rows_np[index])
            request = rows.requests[row]
            if request.status is Status.RUNNING:
                kv.release_outside(request.blocks, int(confirmed_np[index]))
                rows.release_later(row, kv.next_release(request.blocks))


def _take_logprobs(update: RequestUpdate, output: TokenLogprobs) -> None:
    """Those of tokens after its end are dropped, as these were."""
    if len(update.logprobs) < len(update.new_token_ids):
        update.logprobs = (*update.logprobs, output)


def _by_row(tokens_np: IntArray) -> tuple[list[list[int]], Column]:
    """tokens [m, s, width] -> for each of s rows its tokens in order, without NO_TOKEN, and how many they are."""
    num_forwards, num_rows, width = tokens_np.shape
    by_row_np = tokens_np.transpose(1, 0, 2).reshape(num_rows, num_forwards * width)
    tokens: list[list[int]] = by_row_np.tolist()
    found_np = by_row_np != NO_TOKEN
    counts_np: Column = found_np.sum(axis=1, dtype=np.int64)
    for index in np.flatnonzero(counts_np < num_forwards * width).tolist():
        tokens[index] = by_row_np[index, found_np[index]].tolist()
    return tokens, counts_np

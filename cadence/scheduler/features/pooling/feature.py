"""The host half of the feature `pooling`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cadence.core.contract.request import FinishReason
from cadence.core.contract.step import FloatArray, PooledOutput, StepResult
from cadence.core.contract.update import RequestUpdate
from cadence.core.failure import Failure, FailureCode
from cadence.core.pooled.pooling import POOLING, PoolingSpec
from cadence.scheduler.feature import Books, HostFeature
from cadence.scheduler.news import News, news_of
from cadence.scheduler.plan import PlanDraft
from cadence.scheduler.request_state import RequestState, Status
from cadence.scheduler.step_in_flight import StepInFlight

NO_NUMBERS = Failure(FailureCode.BAD_LOGITS, "the model produced NaN or infinite values")


class PooledRequests(HostFeature):
    """A request ends with what its last part of a prompt brought; what others brought before is kept until then. So do
    those of other features whose rows give values in place of tokens."""

    name = POOLING

    def begin(self, request: RequestState, draft: PlanDraft) -> PoolingSpec | None:
        """One that was preempted computes all of its tokens again."""
        if not request.request.samples:
            request.kept[POOLING] = []
        return request.request.attached(PoolingSpec)

    def reconcile(self, step: StepInFlight, result: StepResult, news: News, books: Books) -> None:
        requests, ended = books.rows.requests, list[RequestUpdate]()
        for row, output in result.outputs:
            if isinstance(output, PooledOutput) and requests[row].status is not Status.FINISHED:
                _take(requests[row], output)
                if output.is_last:
                    news[row] = update = _end(requests[row])
                    ended.append(update)
        _check_numbers(ended)


def _take(request: RequestState, output: PooledOutput) -> None:
    parts: list[FloatArray] = request.kept[POOLING]
    parts.append(output.values_np)


def _end(request: RequestState) -> RequestUpdate:
    parts: list[FloatArray] = request.kept[POOLING]
    update = news_of(request, [])
    update.pooled_np, update.finish_reason = parts[0] if len(parts) == 1 else np.concatenate(parts), FinishReason.STOP
    return update


def _check_numbers(ended: Sequence[RequestUpdate]) -> None:
    """Those whose values are no numbers end with an error. As a rule all are numbers: one look at all tells."""
    values = [update.pooled_np.ravel() for update in ended if update.pooled_np is not None]
    if not values or np.isfinite(np.concatenate(values)).all():
        return
    for update, values_np in zip(ended, values, strict=True):
        if not np.isfinite(values_np).all():
            update.pooled_np = None
            update.finish_reason, update.stop_reason = FinishReason.ERROR, NO_NUMBERS

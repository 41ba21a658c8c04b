"""The host half of the feature `pooling`."""

from __future__ import annotations

import numpy as np

from cadence.core.contract.request import FinishReason
from cadence.core.contract.step import FloatArray, PooledOutput, StepResult
from cadence.core.contract.update import RequestUpdate
from cadence.core.failure import Failure, FailureCode
from cadence.core.pooling import POOLING, PoolingSpec
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
        spec = request.request.attached(PoolingSpec)
        if spec is not None:
            request.kept[POOLING] = []
        return spec

    def reconcile(self, step: StepInFlight, result: StepResult, news: News, books: Books) -> None:
        for row, output in result.outputs:
            if isinstance(output, PooledOutput):
                _take(books.rows.requests[row], row, output, news)


def _take(request: RequestState, row: int, output: PooledOutput, news: News) -> None:
    if request.status is Status.FINISHED:
        return
    parts: list[PooledOutput] = request.kept.setdefault(POOLING, [])
    parts.append(output)
    if output.is_last:
        update = news[row] = news_of(request, [])
        values = [part.values_np for part in parts]
        _end(update, values[0] if len(values) == 1 else np.concatenate(values))


def _end(update: RequestUpdate, values_np: FloatArray) -> None:
    if np.isfinite(values_np).all():
        update.pooled_np, update.finish_reason = values_np, FinishReason.STOP
    else:
        update.finish_reason, update.stop_reason = FinishReason.ERROR, NO_NUMBERS

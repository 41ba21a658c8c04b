"""The host half of the feature `alignment`. How such requests end is that of `pooling`: with values."""

from __future__ import annotations

from cadence.core.inputs.alignment import ALIGNMENT, AlignmentSpec
from cadence.scheduler.feature import HostFeature
from cadence.scheduler.plan import PlanDraft
from cadence.scheduler.request_state import RequestState


class AlignedRequests(HostFeature):
    name = ALIGNMENT

    def begin(self, request: RequestState, draft: PlanDraft) -> AlignmentSpec | None:
        return request.request.attached(AlignmentSpec)

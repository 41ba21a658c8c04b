"""The half of a feature beside the scheduler, as the scheduler knows it.

The scheduler holds a list of them, in the order in which they are asked, and names none. `core/features.py` has the
types of what they say to their halves on the device.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from cadence.core.request import EngineRequest
from cadence.scheduler.plan import PlanDraft
from cadence.scheduler.request_state import OrderKey, RequestState


class HostFeature:
    """Every method does nothing by default, and is called only where a feature has its own."""

    name: str  # of its line in `FEATURES`; its stats are the field of that name of `EngineStats`
    changes: int = 0  # counts what may let requests in that `holds` has held back

    def join(self, request: RequestState) -> None:
        """It has come to the waiting queue."""

    def leave(self, request: RequestState) -> None:
        """It has ended. A row that it has is released later."""

    def holds(self, request: RequestState) -> str:
        """-> "", or it may have no row now and waits aside, together with others of the same text."""
        return ""

    def recall(self, waiting: Iterable[tuple[OrderKey, str]]) -> list[str]:
        """Something has changed for requests that wait aside, by their texts, each with the key of its oldest request,
        oldest first -> the texts of those that should be looked at again."""
        return []

    def begin(self, request: RequestState, draft: PlanDraft) -> Any:
        """It takes a row -> what the device is told of the row; None = it does not use the feature"""
        return None

    def release(self, request: RequestState) -> None:
        """The last step naming its row has returned."""

    def stats(self, requests: Iterable[RequestState], preparing: Sequence[EngineRequest]) -> Any:
        """Of all requests that have not ended, and of those that will be added; None = it has none"""
        return None


def with_own(features: Sequence[HostFeature], method: str) -> list[HostFeature]:
    """Those of the features that do something in this method."""
    return [each for each in features if getattr(type(each), method) is not getattr(HostFeature, method)]

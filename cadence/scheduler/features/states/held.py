"""Models with layers that keep a state, where no prompt goes on from that of another: how many states are in use."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from cadence.core.contract.request import EngineRequest
from cadence.core.model.state_spec import STATES, StateStats
from cadence.scheduler.feature import HostFeature
from cadence.scheduler.request_state import NO_ROW, RequestState


def num_running(requests: Iterable[RequestState]) -> int:
    """Each has a row, and with it a state."""
    return sum(request.row != NO_ROW for request in requests)


class HeldStates(HostFeature):
    name = STATES

    def __init__(self, num_rows: int) -> None:
        self._num_rows = num_rows

    def stats(self, requests: Iterable[RequestState], preparing: Sequence[EngineRequest]) -> StateStats:
        return StateStats(rows=self._num_rows, running=num_running(requests))

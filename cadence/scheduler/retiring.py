"""Rows on their way out: ended for the scheduler, still named by steps in flight."""

from __future__ import annotations

from collections.abc import Sequence

from cadence.scheduler.feature import HostFeature, with_own
from cadence.scheduler.kv.manager import KVManager
from cadence.scheduler.request_state import RequestState
from cadence.scheduler.rows import RowTable


class Retiring:
    """A row, its blocks and what features keep for it are reused only when the last step naming them has returned."""

    def __init__(self, rows: RowTable, kv: KVManager, features: Sequence[HostFeature]) -> None:
        self._rows = rows
        self._kv = kv
        self._features = with_own(features, "release")
        self._by_step: dict[int, list[tuple[RequestState, int]]] = {}  # last step -> (request, blocks held alone)
        self._ended: list[int] = []  # rows the device has not been told of
        self._returned = 0  # id of the last step that has returned
        self.num_blocks = 0  # blocks that will come free

    def __bool__(self) -> bool:
        return bool(self._by_step)

    def retire(self, request: RequestState) -> None:
        self._ended.append(request.row)
        last_step = int(self._rows.last_step_np[request.row])
        if last_step <= self._returned:
            self._release(request)
            return
        held = self._kv.held_alone(request.blocks)
        self.num_blocks += held
        self._by_step.setdefault(last_step, []).append((request, held))

    def step_returned(self, step_id: int) -> None:
        self._returned = step_id
        for request, held in self._by_step.pop(step_id, ()):
            self.num_blocks -= held
            self._release(request)

    def awaits(self, step_id: int) -> bool:
        """Whether a row has ended for which this is the last step."""
        return step_id in self._by_step

    def take_ended(self) -> list[int]:
        """Rows for `StepPlan.ended`, for a plan that will be carried out."""
        ended, self._ended = self._ended, []
        return ended

    def _release(self, request: RequestState) -> None:
        self._kv.release(request.blocks)
        for feature in self._features:
            feature.release(request)
        self._rows.release(request)

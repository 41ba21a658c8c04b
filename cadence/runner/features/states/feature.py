"""States of rows that are kept for requests to come."""

from __future__ import annotations

import torch

from cadence.core.model.state_spec import STATES, StateRoom
from cadence.runner.feature import DeviceFeature
from cadence.runner.features.states.rows import StateRows


class DeviceStates(DeviceFeature):
    """A plan says what is saved before its rows begin: rows that have ended are still as the plan before left them."""

    name = STATES

    def __init__(self, rows: StateRows) -> None:
        self.tables = self.inputs = [rows]
        self.rows = rows

    def allocate(self, room: StateRoom) -> None:
        self.rows.allocate(room)

    def memory(self) -> list[torch.Tensor]:
        return self.rows.memory()

    def apply(self, payload: list[tuple[int, int]]) -> None:
        for row, slot in payload:
            self.rows.save(row, slot)

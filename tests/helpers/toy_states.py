"""States of the toy model: one number of a row, which hashes all tokens that it has taken in."""

from __future__ import annotations

from collections.abc import Sequence

from cadence.core.contract.step import NewRow, StepPlan
from cadence.core.model.state_spec import STATES


def state_of(tokens: Sequence[int], before: int = 0) -> int:
    for token in tokens:
        before = hash((before, token))
    return before


class ToyStates:
    """A table of rows and one of snapshots, as a device has them: what is not asked for stays as it was."""

    def __init__(self, num_rows: int, num_snapshots: int) -> None:
        self._rows = [(0, 0)] * num_rows  # (tokens, state); also of rows that have ended
        self._saved: list[tuple[int, int] | None] = [None] * num_snapshots

    def save(self, plan: StepPlan) -> None:
        """Before rows begin."""
        saves = plan.payloads.get(STATES, [])
        assert len({slot for _, slot in saves}) == len(saves), "a slot written twice in one step"
        for row, slot in saves:
            self._saved[slot] = self._rows[row]

    def begin(self, new: NewRow) -> None:
        slot = new.payloads.get(STATES)
        if slot is None:
            assert new.num_computed == 0, "it goes on from nothing"
            self._rows[new.row] = (0, 0)
            return
        saved = self._saved[slot]
        assert saved is not None, "read before it was written"
        assert saved[0] == new.num_computed, "the state of another prefix"
        self._rows[new.row] = saved

    def take_in(self, row: int, tokens: list[int]) -> int:
        """-> the state after these"""
        count, state = self._rows[row]
        self._rows[row] = (count + len(tokens), state_of(tokens, state))
        return self._rows[row][1]

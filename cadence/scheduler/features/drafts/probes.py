"""When rows without drafts try one again."""

from __future__ import annotations

import numpy as np

_SHARE = 0.012  # of the time is spent on probes ...
_HOPELESS = 0.0015  # ... and this where no draft, however right, is worth its time
_PAUSE, _LONGEST_PAUSE = 8, 32  # forwards between two probes of a row, cheap as they may be
_EMPTY = 4  # forwards after which a probe ends though it met no draft, where empty places cost time


class DraftProbes:
    """A row on probe has one draft at most, until the first that is wrong. Each probe in vain doubles the pause until
    the next. What probes cost is a debt, in forwards without drafts, which a small share of all forwards pays off;
    none begins before that is done. Then all begin that are due: the first draft of a forward may be the dear one.
    """

    def __init__(self, num_rows: int) -> None:
        self.is_probing_np = np.zeros(num_rows, bool)
        self._due_np = np.zeros(num_rows, np.int64)  # forward from which on a row may be probed
        self._pause_np = np.full(num_rows, _PAUSE, np.int64)  # forwards until a next probe, if this one is in vain
        self._forward = 0  # number of forwards so far
        self._first_due = 0  # no row is due before
        self._began = 0  # forward
        self._debt = 0.0
        self.are_any = False  # rows are on probe

    def begin(self, row: int) -> None:
        self.is_probing_np[row] = False
        self._due_np[row] = self._first_due = self._forward
        self._pause_np[row] = _PAUSE

    def advance(self, num_forwards: int, may_pay: bool) -> None:
        self._forward += num_forwards
        self._debt = max(self._debt - num_forwards * (_SHARE if may_pay else _HOPELESS), 0.0)

    def charge(self, forwards: float) -> None:
        self._debt += max(forwards, 0.0)

    @property
    def may_start(self) -> bool:
        return self._debt <= 0 and self._forward >= self._first_due

    def start(self, idle_np: np.ndarray) -> np.ndarray:
        """[n] rows that have no drafts -> those of them that are probed from now on."""
        due_np: np.ndarray = idle_np[(self._due_np[idle_np] <= self._forward) & ~self.is_probing_np[idle_np]]
        self.is_probing_np[due_np] = True
        self.are_any = self.are_any or bool(len(due_np))
        self._began = self._forward
        self._first_due = self._forward + _PAUSE
        return due_np

    def stop(self, rows_np: np.ndarray) -> None:
        """These were probed in vain, or have no drafts any more."""
        self.is_probing_np[rows_np] = False
        self.are_any = bool(self.is_probing_np.any())
        self._due_np[rows_np] = self._forward + self._pause_np[rows_np]
        self._pause_np[rows_np] = np.minimum(2 * self._pause_np[rows_np], _LONGEST_PAUSE)

    def succeed(self, rows_np: np.ndarray, are_settled_np: np.ndarray) -> None:
        """These have drafts now, some of them for long."""
        self.is_probing_np[rows_np] = False
        self.are_any = bool(self.is_probing_np.any())
        self._pause_np[rows_np[are_settled_np]] = _PAUSE

    @property
    def are_empty(self) -> bool:
        """Probes have gone on for so long that empty places cost too much."""
        return self._forward - self._began >= _EMPTY

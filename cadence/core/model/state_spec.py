"""What layers keep of a request in place of keys: a state of one size, however long the request is."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

STATES = "states"  # the feature's name
STATE_BYTES = 4  # an entry of a recurrent state: float32


@dataclass(frozen=True, slots=True)
class LayerState:
    """Of one layer. Either part may be absent.

    conv: channels and width of its short convolution; the state has the last width - 1 inputs of each.
    state: shape of its recurrent state. kept: entries of what a token is to that state, kept while the token may yet
    be dropped.
    """

    conv: tuple[int, int] = (0, 1)
    state: tuple[int, ...] = (0,)
    kept: int = 0

    def row_bytes(self, most_drafts: int, itemsize: int) -> int:
        """Of a running request. itemsize: bytes of an activation"""
        channels, width = self.conv
        inputs = channels * (width - 1 + most_drafts) + self.kept * most_drafts
        return inputs * itemsize + prod(self.state) * STATE_BYTES

    def snapshot_bytes(self, itemsize: int) -> int:
        """Of a state that is kept after a request, or for another that begins alike."""
        return self.row_bytes(0, itemsize)


@dataclass(frozen=True, slots=True)
class StateRoom:
    """How many states there is memory for."""

    rows: int  # of running requests; 0: no layer of the model keeps a state
    snapshots: int = 0  # of states that are kept for requests to come


@dataclass(frozen=True, slots=True)
class StateStats:
    """Of running requests, and of snapshots. Saved, restored and evicted ones are counted from the start."""

    rows: int = 0  # requests that may run at once; 0: no layer of the model keeps a state
    running: int = 0  # of these
    slots: int = 0  # for snapshots
    used: int = 0  # of these
    saved: int = 0
    restored: int = 0
    evicted: int = 0

    def plus(self, other: StateStats) -> StateStats:
        return StateStats(
            rows=self.rows + other.rows,
            running=self.running + other.running,
            slots=self.slots + other.slots,
            used=self.used + other.used,
            saved=self.saved + other.saved,
            restored=self.restored + other.restored,
            evicted=self.evicted + other.evicted,
        )


NO_STATE_STATS = StateStats()

"""How much of a device's memory states get: those of running requests, and snapshots of some for requests to come."""

from __future__ import annotations

from dataclasses import dataclass

from cadence.core.errors import ConfigError
from cadence.core.model.state_spec import StateRoom
from cadence.runner.caches.states import StateSizes

ROWS_SHARE = 0.75  # of the memory for states and keys, that running requests get at most
SNAPSHOT_SHARE = 1 / 8  # of what they leave, where blocks of keys need the rest
MOST_SNAPSHOTS = 4096

NO_STATES = StateRoom(0)


@dataclass(frozen=True, slots=True)
class StateMemoryPlan:
    """Of one device; None: its model has no layers that keep a state."""

    sizes: StateSizes | None
    has_keys: bool  # other layers of the model keep keys
    caching: bool  # snapshots are of use

    def room(self, num_bytes: int, max_num_seqs: int) -> StateRoom:
        """num_bytes: for states and keys"""
        if self.sizes is None:
            return NO_STATES
        row, snapshot = self.sizes.row_bytes, self.sizes.snapshot_bytes
        fits = int(num_bytes * ROWS_SHARE) // row - 1 if row else max_num_seqs  # one more is the dummy's
        if fits < 1:
            raise ConfigError(
                f"the state of one request takes {row / 2**20:.1f} MiB, and there is room for {num_bytes / 2**20:.1f} "
                "MiB of states and keys: raise kv_cache_memory_bytes",
                field="kv_cache_memory_bytes",
            )
        rows = min(max_num_seqs, fits)
        left = (num_bytes - row * (rows + 1)) * (SNAPSHOT_SHARE if self.has_keys else 1.0)
        snapshots = min(int(left) // snapshot, MOST_SNAPSHOTS) if snapshot else MOST_SNAPSHOTS
        return StateRoom(rows, snapshots if self.caching else 0)

    def bytes_of(self, room: StateRoom) -> int:
        if self.sizes is None:
            return 0
        return self.sizes.row_bytes * (room.rows + 1) + self.sizes.snapshot_bytes * room.snapshots

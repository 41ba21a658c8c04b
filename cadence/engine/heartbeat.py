"""What the heartbeats of an engine process say."""

from __future__ import annotations

import time
from dataclasses import dataclass

from cadence.core.contract.messages import Heartbeat

HEARTBEAT_S = 0.5


@dataclass(slots=True)
class StepClock:
    """Written by the loop, read by the heartbeat's thread."""

    busy_since: float = 0.0  # seconds, time.monotonic; 0.0 = waiting for commands
    num_steps: int = 0

    def heartbeat(self) -> Heartbeat:
        since = self.busy_since
        return Heartbeat(time.monotonic() - since if since else 0.0, self.num_steps)

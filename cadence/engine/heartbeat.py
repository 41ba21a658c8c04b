"""The engine process's heartbeats, sent by a thread of its own: also while weights load and while a step runs."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass

from cadence.core.codec import encode
from cadence.core.messages import FromEngine, Heartbeat
from cadence.engine.fronts import Fronts

HEARTBEAT_S = 0.5


@dataclass(slots=True)
class StepClock:
    """Written by the loop, read by the heartbeat's thread."""

    busy_since: float = 0.0  # seconds, time.monotonic; 0.0 = waiting for commands
    num_steps: int = 0

    def heartbeat(self) -> Heartbeat:
        since = self.busy_since
        return Heartbeat(time.monotonic() - since if since else 0.0, self.num_steps)


def start_heartbeat(fronts: Fronts, clock: StepClock) -> None:
    def beat() -> None:
        while True:
            try:
                fronts.beat(encode(FromEngine(heartbeat=clock.heartbeat())))
            except OSError:
                return
            time.sleep(HEARTBEAT_S)

    threading.Thread(target=beat, name="heartbeat", daemon=True).start()

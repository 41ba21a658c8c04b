"""How far a server may be moved by what it is sent."""

from __future__ import annotations

import os
from dataclasses import dataclass

POOL = min(32, (os.cpu_count() or 1) + 4)  # threads of asyncio's own pool, at most


@dataclass(frozen=True)
class Bounds:
    """Times hold on a machine of its own. `make test` shares its machine with other tests, and with whatever else runs
    there: `margin` stretches the times, and nothing else, until only what stands still breaks them."""

    margin: float = 1.0
    livez_s: float = 0.25  # longest answer of /livez
    gap_s: float = 1.0  # longest gap between two tokens of a running stream
    answer_s: float = 30.0  # longest time to a whole answer
    settle_s: float = 10.0  # until running = waiting = 0, and descriptors and threads are back
    rss_factor: float = 1.3
    rss_extra_mb: float = 64.0
    extra_descriptors: int = 2
    extra_threads: int = POOL  # a pool makes its threads when they are first needed at once

    def scaled(self, seconds: float) -> float:
        return seconds * self.margin

    def rss_limit(self, start_mb: float) -> float:
        return start_mb * self.rss_factor + self.rss_extra_mb


CI_MARGIN = 60.0
EXACT = 1.0

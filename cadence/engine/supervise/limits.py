"""How long a supervisor waits for what, and how often it tries."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SupervisorLimits:
    heartbeat_s: float = 10.0  # silence of an engine that is ready, before it is killed; 0 = no limit
    start_silence_s: float = 60.0  # silence of one that starts; how long it takes in all has no limit; 0 = no limit
    rejoin_s: float = 60.0  # for ranks of other machines to join an engine started again, while requests wait
    step_s: float = 900.0  # duration of one step, before the engine is killed; 0 = no limit
    stop_s: float = 3.0  # for an engine told to stop, before it is killed
    isolation_s: float = 10.0  # most that others wait for a request that is retried in isolation
    tick_s: float = 0.25  # how often all this is looked at
    first_backoff_s: float = 0.1  # before the first restart in a row without a token in between; doubles each time
    max_backoff_s: float = 5.0
    max_failed_starts: int = 3  # in a row: the engine is given up
    max_spawn_failures: int = 20  # in a row, for want of memory or descriptors
    proven_s: float = 60.0  # an engine that was ready this long did not fail to start
    gives_up: bool = True  # without, an engine's owner decides that there will be no other
    probe_after: int = 3  # deaths in a row without a token, after which the next engine shows first that it works

"""Whether an engine process still lives, judged by its heartbeats. No clock of its own: it is told what time passed."""

from __future__ import annotations

from cadence.core.contract.messages import Heartbeat
from cadence.engine.supervise.limits import SupervisorLimits


class Watchdog:
    """Of one engine process."""

    def __init__(self, limits: SupervisorLimits) -> None:
        self._limits = limits
        self._silence = 0.0  # seconds without any message
        self._step_age = 0.0  # seconds, by the last heartbeat
        self._ready = False

    def ready(self) -> None:
        self._ready = True

    def on_message(self, heartbeat: Heartbeat | None) -> None:
        """A message came."""
        self._silence = 0.0
        if heartbeat is not None:
            self._step_age = heartbeat.step_age

    def counted(self, seconds: float) -> float:
        """Of the time between two ticks, what counts against the engine. A tick that comes late says that this process
        was held up, not the engine: it counts as two at most."""
        return min(seconds, 2 * self._limits.tick_s)

    def tick(self, seconds: float) -> str:
        """`seconds` have passed since the last tick. -> why the process must be killed; "" = it need not be"""
        limits = self._limits
        self._silence += self.counted(seconds)
        allowed = limits.heartbeat_s if self._ready else limits.start_silence_s
        if 0 < allowed < self._silence:
            return f"the engine process sent no heartbeat for {allowed:g} s"
        if 0 < limits.step_s < self._step_age:
            return f"a step of the engine took longer than {limits.step_s:g} s"
        return ""

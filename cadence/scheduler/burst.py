"""How many forwards a plan has: as many as keep no request waiting."""

from __future__ import annotations

from cadence.config.engine_config import SchedulerConfig
from cadence.core.sampling_params import SamplingParams, is_on_device
from cadence.scheduler.decode_times import DecodeTimes

_UNNOTICED = 0.03  # seconds that a new request may wait for the forwards under way


def needs_host(sampling: SamplingParams) -> bool:
    """Whether the host has a say between two forwards of this request."""
    processors = sampling.logits_processors
    return processors is not None and not all(map(is_on_device, processors))


class BurstPolicy:
    """Explicit bursts (no time limit was set) have the length that was asked for, even while requests wait.

    Automatic ones are powers of two that stay within the time limit by what earlier plans of about as many rows took;
    they are for plans of decodes alone, while no request waits.
    """

    def __init__(self, config: SchedulerConfig, decodes: DecodeTimes) -> None:
        self.most = config.burst_steps
        self._automatic = config.burst_seconds > 0
        self._limit = config.burst_seconds
        self._decodes = decodes

    def wanted(self, num_rows: int, longest: int, steady: bool) -> int:
        """Forwards of a plan.

        num_rows: rows it computes. longest: most tokens one of them may yet get. steady: all rows decode, and no
        request waits.
        """
        most = min(self.most, power_of_two_above(longest))
        if not self._automatic:
            return most
        if not steady:
            return 1
        seconds = self._decodes.seconds(num_rows)
        num_forwards = 1
        while 2 * num_forwards <= most and 2 * num_forwards * seconds <= self._limit:
            num_forwards *= 2
        return num_forwards

    def together(self, num_rows: int, num_forwards: int) -> int:
        """Forwards of a plan that may come back in one part: so many that no one notices."""
        seconds = max(self._decodes.seconds(num_rows), 1e-9)
        return max(min(num_forwards, int(_UNNOTICED / seconds)), 1)


def power_of_two_above(number: int) -> int:
    """The least power of two that is not below `number`, which is at least 1."""
    return 1 << (number - 1).bit_length()

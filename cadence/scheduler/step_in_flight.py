"""A plan whose results have not come back in full."""

from __future__ import annotations

from dataclasses import dataclass

from cadence.core.contract.step import StepPlan
from cadence.scheduler.rows import Column


@dataclass(slots=True)
class StepInFlight:
    """What was booked for one plan. Nowhere else are its forwards counted."""

    plan: StepPlan
    sampling_np: Column  # [s] rows that sample in the first forward, in plan order
    following_np: Column  # [f] those that go on: all but those that wait for mail
    lines_np: Column  # [s] most tokens that each samples in the first forward; in each after it, those of plan.width
    num_forwards: int  # that will run: those of the plan, less those cut
    num_queued: int = 0  # that the device was asked for
    num_returned: int = 0  # whose results have come
    num_verified: int = 0  # lines beyond each run's first that these verified, in all rows together
    launched: float = 0.0  # seconds, time.perf_counter
    awaits_mail: bool = False  # that its rows wait for: it was not posted
    certain: tuple[int, ...] = ()  # rows whose drafts in the first forward the host knew to be right

    @property
    def returning_np(self) -> Column:
        """Rows that sample in the next forwards to return"""
        return self.following_np if self.num_returned else self.sampling_np

    def booked(self, count: int) -> Column | int:
        """[s] tokens booked for the next `count` forwards to return"""
        later = count * self.plan.width
        return later if self.num_returned else self.lines_np + (later - self.plan.width)

    @property
    def is_idle(self) -> bool:
        """Nothing of it is under way: what is left can still be given up."""
        return self.num_queued == self.num_returned

    @property
    def has_returned(self) -> bool:
        return self.num_returned == self.num_forwards

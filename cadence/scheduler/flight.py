"""Plans whose results have not come back in full."""

from __future__ import annotations

from dataclasses import dataclass

from cadence.scheduler.rows import Column


@dataclass(slots=True)
class Flight:
    """What was booked for one plan."""

    step_id: int
    sampling_np: Column  # [s] rows that sample, in plan order
    num_steps: int  # forwards that will run
    extra_np: Column  # [s] tokens booked for the forwards after the first; [] without any
    num_returned: int = 0  # forwards whose results have come

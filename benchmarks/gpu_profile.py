"""Where the time of decoding goes on a GPU, and how much of it nothing runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile


@dataclass(frozen=True, slots=True)
class DecodeProfile:
    table: str  # kernels by time
    kernels: int  # launches
    idle_share: float  # of the time between the first and the last kernel of the steady part


def profile_decode(work: Callable[[], object]) -> DecodeProfile:
    """The middle half of the kernels is taken as the steady part: prefill and the tail are left out."""
    work()
    with profile(activities=[ProfilerActivity.CUDA]) as recorded:
        work()
    spans = sorted(
        (event.time_range.start, event.time_range.end)
        for event in recorded.events()
        if event.device_type == DeviceType.CUDA
    )
    steady = spans[len(spans) // 4 : 3 * len(spans) // 4]
    table = recorded.key_averages().table(sort_by="self_cuda_time_total", row_limit=40)
    return DecodeProfile(table, len(spans), _idle(steady))


def _idle(spans: list[tuple[float, float]]) -> float:
    if not spans:
        return 1.0
    busy, reached = 0.0, spans[0][0]
    for start, end in spans:
        busy += max(end - max(start, reached), 0.0)
        reached = max(reached, end)
    return 1.0 - busy / (reached - spans[0][0])

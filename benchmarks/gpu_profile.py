"""Where the time of decoding goes on a GPU, and how much of it nothing runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

_MOST_LINES = 12
_WARM_UPS = 3
_NAME = 40  # characters of a kernel's name

Span = tuple[float, float, str]  # begin, end (microseconds), kernel


@dataclass(frozen=True, slots=True)
class DecodeProfile:
    table: str  # kernels by time
    gaps: str  # pairs of kernels between which nothing ran, by time
    kernels: int  # launches
    idle_share: float  # of the time between the first and the last kernel of the steady part


def profile_decode(work: Callable[[], object]) -> DecodeProfile:
    """The middle half of the kernels is taken as the steady part: prefill and the tail are left out.

    How long bursts are follows from measured times: a length may first be met, and captured, in a later run.
    """
    for _ in range(_WARM_UPS):
        work()
    with profile(activities=[ProfilerActivity.CUDA]) as recorded:
        work()
    spans = sorted(
        (event.time_range.start, event.time_range.end, event.name)
        for event in recorded.events()
        if event.device_type == DeviceType.CUDA
    )
    steady = spans[len(spans) // 4 : 3 * len(spans) // 4]
    table = recorded.key_averages().table(sort_by="self_cuda_time_total", row_limit=40)
    gaps, idle_share = _idle(steady)
    return DecodeProfile(table, gaps, len(spans), idle_share)


def _idle(spans: list[Span]) -> tuple[str, float]:
    """-> (table of gaps, share of the time in gaps)"""
    if not spans:
        return "", 1.0
    begun, reached, last = spans[0]
    seconds: Counter[tuple[str, str]] = Counter()
    count: Counter[tuple[str, str]] = Counter()
    for start, end, name in spans[1:]:
        if start > reached:
            pair = last[:_NAME], name[:_NAME]
            seconds[pair] += start - reached  # type: ignore[assignment]
            count[pair] += 1
        if end > reached:
            reached, last = end, name
    whole = reached - begun
    lines = [
        f"{100 * gap / whole:6.2f} %  {count[pair]:7d} x {gap / count[pair]:8.2f} us  {pair[0]} -> {pair[1]}"
        for pair, gap in seconds.most_common(_MOST_LINES)
    ]
    return "\n".join(lines), sum(seconds.values()) / whole

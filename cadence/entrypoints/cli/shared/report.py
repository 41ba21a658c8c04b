"""Numbers for people: percentiles and aligned tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Measure(NamedTuple):
    name: str
    value: float
    unit: str


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def percentile(values: Sequence[float], percent: float) -> float:
    """Linear between the two nearest ranks; 0.0 of nothing."""
    if not values:
        return 0.0
    ordered = sorted(values)
    place = (len(ordered) - 1) * percent / 100
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def table(rows: Sequence[Measure]) -> str:
    width = max(len(row.name) for row in rows)
    return "\n".join(f"  {row.name:<{width}}  {_short(row.value):>10} {row.unit}" for row in rows)


def columns(lines: Sequence[Sequence[str]]) -> str:
    """Left-aligned columns as wide as their widest entry."""
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip() for line in lines)


def _short(value: float) -> str:
    return f"{value:.1f}" if value >= 100 else f"{value:.3f}"

"""Panels drawn as a page of plain HTML and SVG."""

from __future__ import annotations

import html
import math
import time
from collections.abc import Sequence

from benchmarks.dashboard.panels import Panel, Series

COLUMN, ROW = 60, 32  # pixels of the grid
COLOURS = ("#73bf69", "#f2cc0c", "#5794f2", "#ff780a", "#b877d9", "#f2495c", "#37872d", "#8ab8ff")
MARGIN_LEFT, MARGIN_RIGHT, HEAD, FOOT = 58, 12, 30, 44

STYLE = """
body { margin: 0; background: #111217; color: #d8d9da; font: 13px sans-serif; }
h1 { font-size: 18px; font-weight: 500; margin: 12px; }
.board { position: relative; margin: 0 6px; }
.panel { position: absolute; background: #181b1f; border: 1px solid #2c3235; border-radius: 3px; overflow: hidden; }
.title { padding: 8px 12px; font-weight: 500; }
.value { font-size: 34px; text-align: center; color: #73bf69; padding-top: 4px; }
text { fill: #9fa7b3; font-size: 11px; }
.legend { position: absolute; bottom: 5px; left: 12px; }
.legend span { margin-right: 14px; } .legend b { display: inline-block; width: 14px; height: 3px; margin: 0 5px 3px 0; }
"""


def page(title: str, drawn: Sequence[tuple[Panel, list[Series]]], times: tuple[float, float]) -> str:
    height = max(panel.place["y"] + panel.place["h"] for panel, _ in drawn) * ROW + 20
    boxes = "".join(_box(panel, series, times) for panel, series in drawn)
    head = f"<!doctype html><meta charset='utf-8'><title>{html.escape(title)}</title><style>{STYLE}</style>"
    return f"{head}<h1>{html.escape(title)}</h1><div class='board' style='height:{height}px'>{boxes}</div>"


def _box(panel: Panel, series: list[Series], times: tuple[float, float]) -> str:
    place = panel.place
    width, height = place["w"] * COLUMN - 8, place["h"] * ROW - 8
    style = f"left:{place['x'] * COLUMN}px;top:{place['y'] * ROW}px;width:{width}px;height:{height}px"
    inside = _stat(panel, series) if panel.kind == "stat" else _chart(panel, series, (width, height), times)
    return f"<div class='panel' style='{style}'><div class='title'>{html.escape(panel.title)}</div>{inside}</div>"


def _stat(panel: Panel, series: list[Series]) -> str:
    last = (
        next((value for value in reversed(series[0].values) if math.isfinite(value)), math.nan) if series else math.nan
    )
    return f"<div class='value'>{written(last, panel.unit)}</div>"


def _chart(panel: Panel, series: list[Series], size: tuple[int, int], times: tuple[float, float]) -> str:
    width, height = size
    high = _round_up(max((v for one in series for v in one.values if math.isfinite(v)), default=1.0))
    high = min(high, 1.0) if panel.unit == "percentunit" else high
    right, low = width - MARGIN_RIGHT, height - FOOT

    def place(at: float, value: float) -> tuple[float, float]:
        share = (at - times[0]) / (times[1] - times[0])
        return MARGIN_LEFT + share * (right - MARGIN_LEFT), low - value / high * (low - HEAD)

    parts = []
    for tick in range(5):
        y = place(times[0], high * tick / 4)[1]
        parts.append(f"<line x1='{MARGIN_LEFT}' x2='{right}' y1='{y:.1f}' y2='{y:.1f}' stroke='#2c3235'/>")
        label = written(high * tick / 4, panel.unit).removesuffix(" req/s")
        parts.append(f"<text x='{MARGIN_LEFT - 6}' y='{y + 4:.1f}' text-anchor='end'>{label}</text>")
    for tick in range(1, 6):
        at = times[0] + (times[1] - times[0]) * tick / 6
        clock = time.strftime("%H:%M:%S" if times[1] - times[0] < 1800 else "%H:%M", time.gmtime(at))
        parts.append(f"<text x='{place(at, 0)[0]:.0f}' y='{low + 15}' text-anchor='middle'>{clock}</text>")
    for one, colour in zip(series, COLOURS * 9, strict=False):
        parts.append(f"<path d='{_path(one, place)}' fill='none' stroke='{colour}' stroke-width='1.6'/>")
    named = zip(series, COLOURS * 9, strict=False)
    legend = "".join(f"<span><b style='background:{c}'></b>{html.escape(one.name)}</span>" for one, c in named)
    top = "position:absolute;top:0;left:0"
    return (
        f"<svg width='{width}' height='{height}' style='{top}'>{''.join(parts)}</svg><div class='legend'>{legend}</div>"
    )


def _path(series: Series, place: object) -> str:
    words, down = [], False
    for at, value in zip(series.times, series.values, strict=True):
        if math.isfinite(value):
            x, y = place(at, value)  # type: ignore[operator]
            words.append(f"{'L' if down else 'M'}{x:.1f} {y:.1f}")
        down = math.isfinite(value)
    return " ".join(words)


def _round_up(value: float) -> float:
    """The next of 1, 2, 2.5, 4, 5 times a power of ten."""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(power * step for step in (1, 2, 2.5, 4, 5, 10) if power * step >= value * 0.9999)


def written(value: float, unit: str) -> str:
    if not math.isfinite(value):
        return "–"
    if unit == "percentunit":
        return f"{value * 100:.3g} %"
    if unit == "s":
        return f"{value * 1000:.3g} ms" if 0 < value < 1 else f"{value:.3g} s"
    number = f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"
    return number + (" req/s" if unit == "reqps" else "")

"""Draws what `benchmarks.simulate_cluster` found: python -m benchmarks.cluster_chart RESULTS.json CHART.svg"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib import pyplot
from matplotlib.axes import Axes

COLOURS = ("#b0b7c3", "#1f6feb", "#d97706", "#16a34a")


def draw(result: dict[str, Any], target: Path) -> None:
    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "cadence", "font.size": 9})
    lines = [line for line in result["lines"] if line["router"] == "router"]
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(8.4, 3.4))
    _throughput(left, lines, 1e6 / result["token_us"])
    _routes(right, [line for line in lines if line["route_us"] is not None])
    for panel in (left, right):
        panel.set_xscale("log", base=2)
        panel.set_xticks(sorted({line["engines"] for line in lines}))
        panel.xaxis.set_major_formatter(matplotlib.ticker.ScalarFormatter())
        panel.set_xlabel("engines")
        for side in ("top", "right"):
            panel.spines[side].set_visible(False)
    figure.tight_layout()
    figure.savefig(target, metadata={"Date": None})


def _throughput(panel: Axes, lines: list[dict[str, Any]], each: float) -> None:
    """each: tokens per second that one API process streams at most"""
    for colour, apis in zip(COLOURS, sorted({line["apis"] for line in lines}), strict=False):
        found = sorted((line["engines"], line["tokens_per_s"]) for line in lines if line["apis"] == apis)
        panel.plot(*zip(*found, strict=True), marker="o", color=colour, label=f"{apis} API process" + "es" * (apis > 1))
        panel.axhline(each * apis, color=colour, linewidth=0.7, linestyle=":")
    panel.set_yscale("log")
    panel.set_title("tokens/s that clients get (dotted: all that the API processes can stream)", fontsize=8)
    panel.legend(frameon=False, fontsize=8, loc="lower right")


def _routes(panel: Axes, lines: list[dict[str, Any]]) -> None:
    found: dict[int, list[float]] = {}
    for line in lines:
        found.setdefault(line["engines"], []).append(line["route_us"])
    medians = [(engines, sorted(some)[len(some) // 2]) for engines, some in sorted(found.items())]
    panel.plot(*zip(*medians, strict=True), marker="o", color=COLOURS[1])
    panel.set_ylim(bottom=0)
    panel.set_title("µs to route a request", fontsize=8)


def main() -> None:
    source, target = Path(sys.argv[1]), Path(sys.argv[2])
    draw(json.loads(source.read_text(encoding="utf-8")), target)


if __name__ == "__main__":
    main()

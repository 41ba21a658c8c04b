"""Draws what `benchmarks.simulate_cluster` found: python -m benchmarks.cluster_chart RESULTS.jsonl CHART.svg

Points are medians over seeds, bars reach from the lowest to the highest; hollow ones had not settled.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib import pyplot
from matplotlib.axes import Axes

COLOURS = ("#b0b7c3", "#1f6feb", "#d97706", "#16a34a")


def draw(lines: list[dict[str, Any]], target: Path) -> None:
    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "cadence", "font.size": 9})
    lines = [line for line in lines if line["router"] == "router"]
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(8.4, 3.4))
    _throughput(left, lines, 1e6 / lines[0]["about"]["token_us"])
    _routes(right, lines)
    for panel in (left, right):
        panel.set_xscale("log", base=2)
        panel.set_xticks(sorted({line["engines"] for line in lines}))
        panel.xaxis.set_major_formatter(matplotlib.ticker.ScalarFormatter())
        panel.set_xlabel("engines")
        for side in ("top", "right"):
            panel.spines[side].set_visible(False)
    figure.tight_layout()
    figure.savefig(target, metadata={"Date": None})


def _by_engines(lines: list[dict[str, Any]], name: str) -> dict[int, list[float]]:
    found: defaultdict[int, list[float]] = defaultdict(list)
    for line in lines:
        found[line["engines"]].append(line[name])
    return dict(sorted(found.items()))


def _plot(panel: Axes, lines: list[dict[str, Any]], name: str, colour: str, label: str) -> None:
    found = _by_engines(lines, name)
    middles = [statistics.median(some) for some in found.values()]
    reach = [
        [middle - min(some) for middle, some in zip(middles, found.values(), strict=True)],
        [max(some) - middle for middle, some in zip(middles, found.values(), strict=True)],
    ]
    panel.errorbar(list(found), middles, yerr=reach, marker="o", color=colour, capsize=3, label=label)
    settled = {line["engines"]: line["settled"] for line in lines}
    hollow = [(engines, middle) for engines, middle in zip(found, middles, strict=True) if not settled[engines]]
    if hollow:
        panel.plot(*zip(*hollow, strict=True), marker="o", color=colour, markerfacecolor="white", linestyle="")


def _throughput(panel: Axes, lines: list[dict[str, Any]], each: float) -> None:
    """each: tokens per second that one API process streams at most"""
    for colour, apis in zip(COLOURS, sorted({line["apis"] for line in lines}), strict=False):
        own = [line for line in lines if line["apis"] == apis]
        _plot(panel, own, "tokens_per_s", colour, f"{apis} API process" + "es" * (apis > 1))
        panel.axhline(each * apis, color=colour, linewidth=0.7, linestyle=":")
    panel.set_yscale("log")
    panel.set_title("tokens/s that clients get (dotted: all that the API processes can stream)", fontsize=8)
    panel.legend(frameon=False, fontsize=8, loc="lower right")


def _routes(panel: Axes, lines: list[dict[str, Any]]) -> None:
    _plot(panel, lines, "route_us", COLOURS[1], "")
    panel.set_ylim(bottom=0)
    panel.set_title("µs to route a request", fontsize=8)


def main() -> None:
    source, target = Path(sys.argv[1]), Path(sys.argv[2])
    draw([json.loads(line) for line in source.read_text(encoding="utf-8").splitlines()], target)


if __name__ == "__main__":
    main()

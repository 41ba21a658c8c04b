"""Draws a soak's memory and descriptors over time: python -m benchmarks.soak.chart SOAK.json CHART.png"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from matplotlib import pyplot

_PANELS = ("MB", "descriptors", "threads")


def draw(found: dict[str, Any], target: Path) -> None:
    samples = found["samples"]
    roles = sorted({role for sample in samples for role in sample if role != "s"})
    figure, axes = pyplot.subplots(1, len(_PANELS), figsize=(11, 3))
    for number, (panel, name) in enumerate(zip(axes, _PANELS, strict=True)):
        for role in roles:
            points = [(one["s"] / 60, one[role][number]) for one in samples if role in one]
            panel.plot(*zip(*points, strict=True), label=role, linewidth=1)
        for moment in found["kills"]["minutes"]:
            panel.axvline(moment, color="#d0d0d0", linewidth=0.5, zorder=0)
        panel.set_title(name, fontsize=9)
        panel.set_xlabel("minutes (grey: the engine is killed)", fontsize=8)
        panel.set_ylim(bottom=0)
    axes[0].legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(target, dpi=110)
    pyplot.close(figure)


if __name__ == "__main__":
    draw(json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2]))

"""Draws the lines of `benchmarks.cpu` as bars: python -m benchmarks.cpu_chart LINES.jsonl CHART.png"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from matplotlib import pyplot
from matplotlib.axes import Axes

PANELS = {
    "a": "one stream: decode tokens/s",
    "b": "prompt of 1,024: tokens/s",
    "c": "32 × 128 in, 128 out: tokens/s",
    "d": "64 mixed: tokens/s",
    "e": "start to first token: seconds\n(shorter is better)",
}
OURS, THEIRS = "#1f6feb", "#b0b7c3"


def draw(lines: list[dict[str, Any]], target: Path) -> None:
    found = [line for line in lines if "engine" in line and "failed" not in line]  # and not the ratios
    machine = next(line["machine"] for line in lines if "machine" in line)
    cases = [case for case in PANELS if any(line["case"] == case for line in found)]
    figure, axes = pyplot.subplots(1, len(cases), figsize=(3.3 * len(cases), 3.4), squeeze=False)
    for panel, case in zip(axes[0], cases, strict=True):
        _panel(panel, case, [line for line in found if line["case"] == case])
    threads = next(line["threads"] for line in lines if "threads" in line)
    figure.suptitle(f"SmolLM2-135M on {threads} threads, {machine['cpu']} ({machine['architecture']})", fontsize=10)
    figure.tight_layout()
    figure.savefig(target, dpi=130)


def _panel(panel: Axes, case: str, lines: list[dict[str, Any]]) -> None:
    best: dict[str, float] = {}  # by engine and precision: its better setting
    for line in lines:
        value = line["seconds_to_first"] if case == "e" else line["tokens_per_second"]
        name = f"{line['engine']}\n{line['setting'].split(',')[0]}"
        better = min if case == "e" else max
        best[name] = better(best.get(name, value), value)
    ordered = sorted(best.items(), key=lambda item: item[1], reverse=case == "e")
    names, values = [name for name, _ in ordered], [value for _, value in ordered]
    colours = [OURS if name.startswith("cadence") else THEIRS for name in names]
    bars = panel.barh(names, values, color=colours)
    panel.bar_label(bars, labels=[f"{value:,.2f}" if value < 10 else f"{value:,.0f}" for value in values], padding=2)
    panel.set_xlim(0, max(values) * 1.25)
    panel.set_title(PANELS[case], fontsize=9)
    panel.set_xticks([])
    panel.tick_params(labelsize=8, length=0)
    for side in ("top", "right", "bottom"):
        panel.spines[side].set_visible(False)


def main() -> None:
    source, target = Path(sys.argv[1]), Path(sys.argv[2])
    draw([json.loads(line) for line in source.read_text().splitlines()], target)


if __name__ == "__main__":
    main()

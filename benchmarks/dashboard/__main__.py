"""Draws a Grafana dashboard without Grafana: a Prometheus server evaluates its queries, a browser makes the picture.

python -m benchmarks.dashboard --prometheus http://127.0.0.1:9090 --set model_name=smollm2 --picture board.png

Exits with status 1 where a query has no data.
"""

from __future__ import annotations

import argparse
import math
import subprocess
import tempfile
from pathlib import Path

from benchmarks.dashboard.page import ROW, page
from benchmarks.dashboard.panels import Panel, Prometheus, Series, read_panels

DASHBOARD = Path(__file__).parents[2] / "deploy" / "grafana" / "cadence.json"
WIDTH = 1456  # pixels


def main() -> int:
    options = _options()
    variables = dict(one.split("=", 1) for one in options.set)
    prometheus = Prometheus(options.prometheus, options.minutes * 60, options.ago, variables)
    drawn: list[tuple[Panel, list[Series]]] = []
    empty = []
    for panel in read_panels(options.dashboard):
        found = [(expression, prometheus.ask(legend, expression)) for legend, expression in panel.targets]
        empty += [f"{panel.title}: {expression}" for expression, series in found if not has_data(series)]
        drawn.append((panel, [one for _, series in found for one in series]))
    queries = sum(len(panel.targets) for panel, _ in drawn)
    print(f"{options.dashboard.name}: {len(drawn)} panels, {queries} queries, {len(empty)} without data")
    print("\n".join(empty), end="\n" if empty else "")
    if options.picture:
        content = page(options.dashboard.stem.capitalize(), drawn, (prometheus.begin, prometheus.end))
        height = max(panel.place["y"] + panel.place["h"] for panel, _ in drawn) * ROW + 80
        take_picture(content, options.picture, height)
    return 1 if empty else 0


def has_data(series: list[Series]) -> bool:
    return any(math.isfinite(value) for one in series for value in one.values)


def take_picture(content: str, picture: Path, height: int) -> None:
    with tempfile.TemporaryDirectory(prefix="dashboard-") as folder:
        source = Path(folder) / "page.html"
        source.write_text(content, encoding="utf-8")
        browser = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
        browser += [f"--user-data-dir={folder}/profile", f"--window-size={WIDTH},{height}"]
        words = [*browser, f"--screenshot={picture.resolve()}", source.as_uri()]
        subprocess.run(words, check=True, timeout=60, capture_output=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dashboard", type=Path, default=DASHBOARD)
    parser.add_argument("--prometheus", default="http://127.0.0.1:9090")
    parser.add_argument("--minutes", type=float, default=15.0, help="how far back it looks")
    parser.add_argument("--ago", type=float, default=0.0, help="seconds ago at which the time looked at ends")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a variable of the dashboard")
    parser.add_argument("--picture", type=Path, help="PNG to write, with chromium")
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())

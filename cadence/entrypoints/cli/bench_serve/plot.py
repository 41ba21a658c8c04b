"""Latencies as a picture. matplotlib is imported when one is asked for, and only then."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cadence.core.errors import ConfigError
from cadence.entrypoints.cli.shared.report import percentile


@dataclass(frozen=True, slots=True)
class LatencyPlot:
    title: str
    latencies: Mapping[str, Sequence[float]]  # ms of ttft, tpot, itl, e2el
    starts: Sequence[float]  # seconds at which the requests of ttft were sent
    tokens_by_second: Sequence[int]


def check_plotting(path: str) -> None:
    """Before the load, so that no run is lost to a missing package or folder."""
    if not path:
        return
    if Path(path).suffix.lower() != ".png":
        raise ConfigError(f"plot={path!r} does not end in .png", "plot")
    if not Path(path).expanduser().resolve().parent.is_dir():
        raise ConfigError(f"plot={path!r}: there is no such folder", "plot")
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise ConfigError("--plot needs the package matplotlib (pip install matplotlib)", "plot") from None


def save_latency_plot(picture: LatencyPlot, path: str) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 7), layout="constrained")
    figure.suptitle(picture.title, fontsize=11)
    axes = figure.subplots(2, 2)
    _distribution(axes[0][0], "time to first token", picture.latencies["ttft"])
    _distribution(axes[0][1], "gap between arrivals", picture.latencies["itl"])
    _distribution(axes[1][0], "time to last token", picture.latencies["e2el"])
    _timeline(axes[1][1], picture)
    FigureCanvasAgg(figure)
    figure.savefig(str(Path(path).expanduser()), format="png", dpi=100)


def _distribution(axis: Any, name: str, values: Sequence[float]) -> None:
    """The share of requests that were at least as quick."""
    axis.set_title(name, fontsize=10)
    axis.set_xlabel("ms")
    axis.set_ylabel("share")
    axis.set_ylim(0, 1.02)
    axis.grid(alpha=0.3)
    if not values:
        return
    ordered = sorted(values)
    axis.step(ordered, [(rank + 1) / len(ordered) for rank in range(len(ordered))], where="post", color="#2a6f97")
    for percent, style in ((50, "--"), (99, ":")):
        place = percentile(ordered, percent)
        axis.axvline(place, linestyle=style, color="#bc4749", label=f"p{percent} = {place:.1f} ms")
    axis.set_xlim(left=0)
    axis.legend(fontsize=8, loc="lower right")


def _timeline(axis: Any, picture: LatencyPlot) -> None:
    axis.set_title("the course of the load", fontsize=10)
    axis.set_xlabel("s since the first request")
    axis.set_ylabel("time to first token, ms", color="#2a6f97")
    axis.grid(alpha=0.3)
    axis.scatter(picture.starts, picture.latencies["ttft"], s=8, color="#2a6f97", alpha=0.6)
    axis.set_ylim(bottom=0)
    rates = axis.twinx()
    rates.set_ylabel("output tokens/s", color="#6a994e")
    if len(picture.tokens_by_second) > 1:  # a single second, not yet over, is no rate
        whole = picture.tokens_by_second[:-1]
        rates.plot([second + 0.5 for second in range(len(whole))], whole, color="#6a994e", linewidth=1)
    rates.set_ylim(bottom=0)

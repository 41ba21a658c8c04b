"""The panels of a Grafana dashboard, and what a Prometheus server answers to them."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

POINTS = 240


@dataclass(frozen=True)
class Series:
    name: str
    times: list[float]  # seconds since 1970
    values: list[float]  # NaN where there is nothing to tell


@dataclass(frozen=True)
class Panel:
    title: str
    kind: str  # timeseries, stat, …
    unit: str
    place: Mapping[str, int]  # x, y, w, h on a grid of 24 columns
    targets: list[tuple[str, str]]  # legend and PromQL


def read_panels(path: Path) -> list[Panel]:
    return [_panel(one) for one in _flat(json.loads(path.read_text())["panels"]) if one.get("targets")]


def _flat(panels: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows hold panels of their own where they are folded."""
    return [one for panel in panels for one in (panel, *_flat(panel.get("panels", [])))]


def _panel(content: dict[str, Any]) -> Panel:
    unit = content.get("fieldConfig", {}).get("defaults", {}).get("unit", "short")
    targets = [(target.get("legendFormat", ""), target["expr"]) for target in content["targets"] if "expr" in target]
    return Panel(content.get("title", ""), content["type"], unit, content["gridPos"], targets)


class Prometheus:
    """Answers queries over the `seconds` that ended `ago`."""

    def __init__(self, url: str, seconds: float, ago: float, variables: Mapping[str, str]) -> None:
        self._http = httpx.Client(base_url=url, trust_env=False, timeout=30.0)
        self.end = time.time() - ago
        self.begin = self.end - seconds
        interval = {"$__rate_interval": "30s", "$__interval": "30s", "$__range": f"{int(seconds)}s"}
        self._variables = {**{f"${name}": value for name, value in variables.items()}, **interval}

    def ask(self, legend: str, expression: str) -> list[Series]:
        for name in sorted(self._variables, key=len, reverse=True):
            expression = expression.replace(name, self._variables[name])
        step = (self.end - self.begin) / POINTS
        query = {"query": expression, "start": self.begin, "end": self.end, "step": step}
        reply = self._http.get("/api/v1/query_range", params=query).json()
        if reply["status"] != "success":
            raise RuntimeError(f"{expression}: {reply['error']}")
        return [self._series(legend, one) for one in reply["data"]["result"]]

    def _series(self, legend: str, result: dict[str, Any]) -> Series:
        name = legend
        for label, value in result["metric"].items():
            name = name.replace("{{" + label + "}}", value)
        times, values = zip(*result["values"], strict=True)
        return Series(name, list(times), [float(value) for value in values])

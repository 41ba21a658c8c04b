"""Engines in processes of their own that take turns at the same work, so that a noisy machine disturbs all of them."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

Run = Callable[[], object]
Ways = Mapping[str, Run]  # by name, the ways an engine does a work: the best of them counts


def serve(works: Mapping[str, Ways]) -> None:
    """For each name of a work that comes: the seconds that each way took, as a JSON line."""
    print("ready", flush=True)
    for line in sys.stdin:
        print(json.dumps({name: _seconds(run) for name, run in works[line.strip()].items()}), flush=True)


def _seconds(run: Run) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


class EngineProcess:
    """The other end of `serve`."""

    def __init__(self, engine: str, command: Sequence[str]) -> None:
        self.engine = engine
        self._best: dict[str, dict[str, float]] = {}  # by work and way, seconds
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._line()  # it is ready

    def turn(self, work: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{work}\n")
        self._process.stdin.flush()
        best = self._best.setdefault(work, {})
        for way, taken in json.loads(self._line()).items():
            best[way] = min(taken, best.get(way, taken))

    def best(self, work: str) -> tuple[str, float]:
        """Of its turns: the way, and its seconds."""
        found = self._best[work]
        way = min(found, key=found.__getitem__)
        return way, found[way]

    def end(self) -> None:
        self._process.communicate()

    def _line(self) -> str:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(("ready", "{")):
                return line
        raise RuntimeError(f"{self.engine} ended with {self._process.wait()}")


def report(found: Iterable[Mapping[str, Any]], model: str, out: Path | None) -> None:
    """With the machine and the model: printed, and added to `out`."""
    machine = importlib.import_module("benchmarks.machine").describe_machine()
    lines = [json.dumps({**machine, **line, "model": Path(model).name}) for line in found]
    print("\n".join(lines), flush=True)
    if out is not None:
        with out.open("a", encoding="utf-8") as file:
            file.writelines(f"{line}\n" for line in lines)

"""Engines in processes of their own that take turns at the same work, so that a noisy machine disturbs all of them."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence

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

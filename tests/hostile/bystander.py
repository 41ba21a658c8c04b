"""The probe seen from the campaign: started, paused, asked what it saw."""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path

from tests.hostile.bounds import Bounds

ROOT = Path(__file__).parents[2]
_PATIENCE_S = 600.0


@dataclass(frozen=True)
class Sight:
    kind: str  # livez, gap, livez failed, stream failed
    began: float  # monotonic seconds
    seconds: float
    text: str

    def breaks(self, bounds: Bounds) -> bool:
        limits = {"livez": bounds.livez_s, "gap": bounds.gap_s}
        return self.seconds > bounds.scaled(limits.get(self.kind, -1.0))

    def __str__(self) -> str:
        if self.kind in ("livez", "gap"):
            what = "/livez took" if self.kind == "livez" else "a running stream waited"
            return f"{what} {self.seconds * 1000:.0f} ms"
        return f"{self.kind}: {self.text}"


class Bystander:
    def __init__(self, url: str) -> None:
        self.worst = {"livez": 0.0, "gap": 0.0}  # seconds, since the start
        self._lines: queue.Queue[Sight] = queue.Queue()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.hostile.probe", url],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self._wait_for("ready")

    def pause(self) -> list[Sight]:
        """Ends the stream; gives what was seen since the last pause."""
        return self._tell("pause")

    def go(self) -> list[Sight]:
        return self._tell("go")

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(120)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(120)
        self._reader.join(10)

    def _tell(self, word: str) -> list[Sight]:
        assert self._process.stdin is not None
        self._process.stdin.write(word + "\n")
        self._process.stdin.flush()
        return self._wait_for(word)

    def _wait_for(self, word: str) -> list[Sight]:
        seen: list[Sight] = []
        while (sight := self._lines.get(timeout=_PATIENCE_S)).kind != word:
            seen.append(sight)
            if sight.kind in self.worst:
                self.worst[sight.kind] = max(self.worst[sight.kind], sight.seconds)
        return seen

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(Sight(**json.loads(line)))

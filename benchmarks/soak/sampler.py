"""Memory, descriptors and threads of a server's processes over time."""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import dataclass, field
from typing import Any

from tests.hostile.processes import usages

PERIOD_S = 2.0


@dataclass
class Sampler:
    pid: int
    began: float = field(default_factory=time.monotonic)
    samples: list[dict[str, Any]] = field(default_factory=list)  # {"s": 2.0, "front": [MB, descriptors, threads], ...}

    async def run(self, over: asyncio.Event) -> None:
        while not over.is_set():
            self.take()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(PERIOD_S):
                    await over.wait()

    def take(self) -> None:
        sample: dict[str, Any] = {"s": round(time.monotonic() - self.began, 1)}
        for one in usages(self.pid):
            known = sample.get(one.role, (0, 0, 0))
            usage = (one.rss_mb, one.descriptors, one.threads)
            sample[one.role] = [round(a + b, 1) for a, b in zip(known, usage, strict=True)]
        self.samples.append(sample)

    def figures(self) -> dict[str, Any]:
        """Per role: MB, descriptors and threads at the start, at most, and at the end."""
        roles = sorted({role for sample in self.samples for role in sample if role != "s"})
        return {role: self._figures(role) for role in roles}

    def _figures(self, role: str) -> dict[str, list[float]]:
        seen = [sample[role] for sample in self.samples if role in sample]
        names = ("MB", "descriptors", "threads")
        return {name: [seen[0][n], max(one[n] for one in seen), seen[-1][n]] for n, name in enumerate(names)}

"""The load itself: requests sent when they are due, and the moments at which their tokens arrived."""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from cadence.core.errors import ConfigError
from cadence.entrypoints.cli.remote.client import Remote, RemoteError


@dataclass(slots=True)
class Sample:
    """One request as its client saw it. Times in seconds; `start` counts from the beginning of the load."""

    start: float = 0.0
    ttft: float = 0.0  # to the first token
    itls: list[float] = field(default_factory=list)  # between arrivals after it
    latency: float = 0.0  # to the last token
    prompt_tokens: int = 0
    output_tokens: int = 0
    usage_known: bool = False  # the server sent usage; else arrivals were counted
    error: str = ""  # "" = completed

    @property
    def tpot(self) -> float:
        """Seconds per token after the first; 0 where there is none."""
        return (self.latency - self.ttft) / (self.output_tokens - 1) if self.output_tokens > 1 else 0.0


class Stopwatch:
    """Takes the events of one stream into a Sample."""

    def __init__(self, sample: Sample, sent: float) -> None:
        self._sample = sample
        self._sent = sent
        self._last = 0.0
        self._arrivals = 0

    def __call__(self, event: dict[str, Any], now: float) -> None:
        if (choices := event.get("choices")) and any(_is_arrival(choice) for choice in choices):
            if self._arrivals:
                self._sample.itls.append(now - self._last)
            else:
                self._sample.ttft = now - self._sent
            self._last = now
            self._arrivals += 1
        if usage := event.get("usage"):
            self._sample.usage_known = True
            self._sample.prompt_tokens = int(usage.get("prompt_tokens") or 0)
            self._sample.output_tokens = int(usage.get("completion_tokens") or 0)

    def stop(self, now: float) -> None:
        self._sample.latency = (self._last or now) - self._sent
        if not self._arrivals:
            self._sample.ttft = self._sample.latency
        if not self._sample.usage_known:
            self._sample.output_tokens = self._arrivals


def _is_arrival(choice: dict[str, Any]) -> bool:
    """Something of the answer came, be it a token without text yet. Roles and bare endings are no tokens."""
    if choice.get("text"):
        return True
    delta = choice.get("delta") or {}
    if delta.get("content") or delta.get("reasoning") or delta.get("reasoning_content") or delta.get("tool_calls"):
        return True
    return "role" not in delta and not choice.get("finish_reason")


@dataclass(frozen=True, slots=True)
class Ramp:
    """A rate that goes from one value to another over the load, in requests a second."""

    strategy: str  # linear or exponential
    start: float
    end: float

    @classmethod
    def of(cls, strategy: str | None, start: float | None, end: float | None, rate: float) -> Ramp | None:
        """As flags say it; None = the rate stays."""
        if strategy is None:
            if start is not None or end is not None:
                raise ConfigError("ramp_up_start_rps and ramp_up_end_rps need ramp_up_strategy", "ramp_up_strategy")
            return None
        if rate != float("inf"):
            raise ConfigError("request_rate and ramp_up_strategy cannot both be given", "request_rate")
        for name, value in (("ramp_up_start_rps", start), ("ramp_up_end_rps", end)):
            if value is None or not 0 < value < float("inf"):
                raise ConfigError(f"{name}={value} is not above 0, as ramp_up_strategy needs it", name)
        assert start is not None and end is not None
        return cls(strategy, start, end)

    def rate(self, progress: float) -> float:
        """progress: 0 at the first request, 1 at the last"""
        if self.strategy == "linear":
            return self.start + (self.end - self.start) * progress
        return self.start * math.pow(self.end / self.start, progress)


@dataclass(frozen=True, slots=True)
class Pace:
    """When requests are sent. `rate` inf = all at once; `concurrency` 0 = no limit on those under way."""

    rate: float  # requests a second
    burstiness: float  # 1 = Poisson; below 1 = in bursts; above 1 = more even
    concurrency: int
    seed: int
    ramp: Ramp | None = None  # in the place of `rate`

    def __post_init__(self) -> None:
        if not self.rate > 0:
            raise ConfigError(f"request_rate={self.rate} is not above 0 (or inf)", "request_rate")
        if not 0 < self.burstiness < float("inf"):
            raise ConfigError(f"burstiness={self.burstiness} is not above 0", "burstiness")
        if self.concurrency < 0:
            raise ConfigError(f"max_concurrency={self.concurrency} is not at least 1", "max_concurrency")

    def due_times(self, count: int) -> Iterator[float]:
        """Of so many requests, in seconds after the start. Gaps are gamma-distributed with mean 1 / rate."""
        dice = random.Random(self.seed)
        due = 0.0
        for number in range(count):
            yield due
            rate = self.rate if self.ramp is None else self.ramp.rate(number / max(count - 1, 1))
            if rate != float("inf"):
                due += dice.gammavariate(self.burstiness, 1 / (rate * self.burstiness))


class Load:
    def __init__(self, remote: Remote, endpoint: str) -> None:
        self._remote = remote
        self._endpoint = endpoint

    async def run(
        self, bodies: Sequence[bytes], pace: Pace, on_end: Callable[[Sample], None]
    ) -> tuple[list[Sample], float]:
        """Every body once. Returns the samples in order of the bodies, and the seconds it took."""
        gate = asyncio.Semaphore(pace.concurrency or len(bodies))
        begin = time.perf_counter()

        async def send(body: bytes) -> Sample:
            async with gate:
                sample = await self.one(body, begin)
            on_end(sample)
            return sample

        async with asyncio.TaskGroup() as group:
            tasks: list[asyncio.Task[Sample]] = []
            for body, due in zip(bodies, pace.due_times(len(bodies)), strict=True):
                if (wait := begin + due - time.perf_counter()) > 0:
                    await asyncio.sleep(wait)
                tasks.append(group.create_task(send(body)))
        return [task.result() for task in tasks], time.perf_counter() - begin

    async def one(self, body: bytes, begin: float) -> Sample:
        sent = time.perf_counter()
        sample = Sample(start=sent - begin)
        watch = Stopwatch(sample, sent)
        try:
            await self._remote.stream(self._endpoint, body, watch)
        except RemoteError as error:
            sample.error = str(error)
        watch.stop(time.perf_counter())
        return sample

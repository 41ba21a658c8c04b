"""The cost of HTTP: the same work through the server and offline, in one run; and the API process's CPU per token.

    python -m benchmarks.serve [--out benchmarks/results/NAME.json]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.machine import describe_machine
from cadence import LLM, SamplingParams
from tests.helpers.tiny_models import make_tiny
from tests.server.helpers import ServerProcess
from tests.server.streams import connect, stream_completion

OVERLOAD_S = 20.0
OVERLOAD_TOKENS = 100
TICK = os.sysconf("SC_CLK_TCK")


def prompts(count: int, length: int, low: int, high: int) -> list[list[int]]:
    rng = random.Random(length)
    return [[rng.randrange(low, high) for _ in range(length)] for _ in range(count)]


def cpu_seconds(pid: int) -> float:
    """User and system time of one process, its threads included, its children not."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICK


async def over_http(url: str, work: list[list[int]], out: int, concurrency: int) -> None:
    gate = asyncio.Semaphore(concurrency)

    async def one(prompt: list[int]) -> None:
        async with gate:
            request = {"prompt": prompt, "max_tokens": out, "temperature": 0, "ignore_eos": True}
            status, _, done = await stream_completion(url, request)
            assert status == 200 and done

    await asyncio.gather(*(one(prompt) for prompt in work))


def throughput() -> dict[str, Any]:
    """SmolLM2, 32 streams of 128 in and 64 out: server and offline engine take turns."""
    work = prompts(32, 128, 100, 48000)
    rates: dict[str, list[float]] = {"http": [], "offline": []}
    params = SamplingParams(temperature=0, max_tokens=64, ignore_eos=True)
    flags = ("--dtype", "float32", "--max-model-len", "2048", "--no-enable-prefix-caching")
    with ServerProcess("smollm2", *flags) as server:
        llm = LLM("smollm2", dtype="float32", max_model_len=2048, enable_prefix_caching=False)
        for turn in range(3):
            start = time.perf_counter()
            asyncio.run(over_http(server.url, work, 64, 32))
            http = 32 * 64 / (time.perf_counter() - start)
            start = time.perf_counter()
            llm.generate([{"prompt_token_ids": prompt} for prompt in work], params, use_tqdm=False)
            offline = 32 * 64 / (time.perf_counter() - start)
            if turn:  # the first turn warms up
                rates["http"].append(round(http, 2))
                rates["offline"].append(round(offline, 2))
    ratio = sum(rates["http"]) / sum(rates["offline"])
    return {"output_tokens_per_second": rates, "http / offline": round(ratio, 3)}


def api_cpu() -> dict[str, Any]:
    """64 streams on a tiny model: CPU of the API process per streamed token, tokenising and detokenising included."""
    with tempfile.TemporaryDirectory() as folder:
        model = make_tiny("llama", Path(folder) / "tiny")
        with ServerProcess(model, "--dtype", "float32", "--max-model-len", "512") as server:
            work = prompts(64, 16, 5, 300)
            asyncio.run(over_http(server.url, work, 100, 64))
            before = cpu_seconds(server.process.pid)
            for _ in range(3):
                asyncio.run(over_http(server.url, work, 200, 64))
            spent = cpu_seconds(server.process.pid) - before
    return {"microseconds_per_streamed_token": round(spent / (3 * 64 * 200) * 1e6, 1), "streams": 64}


class Crowd:
    """Clients that ask again and again for a while; one turned away waits a little and comes back."""

    def __init__(self, url: str, seconds: float) -> None:
        self._url = url
        self._ends = time.perf_counter() + seconds
        self.finished = 0
        self.refusals: list[float] = []  # seconds until a 429 was there
        self.health: list[float] = []  # seconds until /livez answered

    async def run(self, count: int) -> None:
        await asyncio.gather(self._probe(), *(self._ask(prompt) for prompt in prompts(count, 16, 5, 300)))

    async def _ask(self, prompt: list[int]) -> None:
        request = {"prompt": prompt, "max_tokens": OVERLOAD_TOKENS, "temperature": 0, "ignore_eos": True}
        while time.perf_counter() < self._ends:
            start = time.perf_counter()
            status, _, done = await stream_completion(self._url, request)
            if status == 200 and done:
                self.finished += 1
            else:
                assert status == 429
                self.refusals.append(time.perf_counter() - start)
                await asyncio.sleep(0.5)

    async def _probe(self) -> None:
        while time.perf_counter() < self._ends:
            start = time.perf_counter()
            reader, writer = await connect(self._url)
            writer.write(b"GET /livez HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
            assert b"200" in await reader.readline()
            self.health.append(time.perf_counter() - start)
            writer.close()
            await asyncio.sleep(0.1)


def overload() -> dict[str, Any]:
    """A queue of 64 on a tiny model: 64 clients, then 192. Times are as the clients saw them, on the same two cores."""
    with tempfile.TemporaryDirectory() as folder:
        model = make_tiny("llama", Path(folder) / "tiny")
        flags = ("--dtype", "float32", "--max-model-len", "512", "--max-queued-requests", "64", "--max-num-seqs", "64")
        with ServerProcess(model, *flags) as server:
            asyncio.run(over_http(server.url, prompts(64, 16, 5, 300), 20, 64))
            crowds = {}
            for count in (64, 192):
                crowds[count] = Crowd(server.url, OVERLOAD_S)
                asyncio.run(crowds[count].run(count))
    refusals, health = sorted(crowds[192].refusals), sorted(crowds[192].health)
    return {
        "finished_at_64": crowds[64].finished,
        "finished_at_192": crowds[192].finished,
        "share_of_peak": round(crowds[192].finished / crowds[64].finished, 3),
        "refused": len(refusals),
        "refusal_ms": {"median": _ms(refusals, 0.5), "p99": _ms(refusals, 0.99)},
        "livez_ms": {"median": _ms(health, 0.5), "max": _ms(health, 1.0)},
    }


def _ms(ordered: list[float], share: float) -> float:
    return round(ordered[min(int(share * len(ordered)), len(ordered) - 1)] * 1e3, 1) if ordered else 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--cases", default="", help="api_cpu, overload, throughput; all of them unless named")
    args = parser.parse_args()
    cases = {"api_cpu": api_cpu, "overload": overload, "throughput": throughput}
    chosen = args.cases.split(",") if args.cases else list(cases)
    report = json.dumps({"machine": describe_machine(), **{name: cases[name]() for name in chosen}}, indent=2)
    print(report)
    if args.out:
        args.out.write_text(report + "\n")


if __name__ == "__main__":
    main()

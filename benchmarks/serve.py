"""The cost of HTTP: the same work through the server and offline, in one run; and the API process's CPU per token.

python -m benchmarks.serve [--out benchmarks/results/NAME.json]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import re
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvloop

from benchmarks import stalls
from benchmarks.machine import describe_machine
from cadence import LLM, SamplingParams
from tests.helpers.tiny_models import make_tiny
from tests.server.helpers import ServerProcess
from tests.server.light_client import LightClient, get_bytes, post_bytes
from tests.server.streams import connect
from tests.server.test_faults import engine_of

OVERLOAD_S = 10.0
OVERLOAD_WARM_UP_S = 3.0
OVERLOAD_RUNS = 3
OVERLOAD_TOKENS = 100
RETRY_S = 0.5  # sooner than the server asks: Retry-After is two seconds here
TICK = os.sysconf("SC_CLK_TCK")


def prompts(count: int, length: int, low: int, high: int) -> list[list[int]]:
    rng = random.Random(length)
    return [[rng.randrange(low, high) for _ in range(length)] for _ in range(count)]


def cpu_seconds(pid: int) -> float:
    """User and system time of one process, its threads included, its children not."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICK


class Clock:
    """CPU since it was started: of the measured processes and this one, and the share of the machine others used."""

    def __init__(self, server: ServerProcess) -> None:
        self._pids = (server.process.pid, engine_of(server))
        self._before = self._spent()

    def read(self) -> tuple[float, float]:
        """(seconds of ours, share of others). What was measured beside others is worth less."""
        ours, busy, total = (now - then for now, then in zip(self._spent(), self._before, strict=True))
        return ours, round(max(0.0, busy - ours) / total, 3)

    def _spent(self) -> tuple[float, float, float]:
        """Seconds: ours, everybody's, and what there was to spend."""
        fields = [int(field) / TICK for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
        ours = time.process_time() + sum(cpu_seconds(pid) for pid in self._pids)
        return ours, sum(fields) - fields[3] - fields[4], sum(fields)


async def over_http(url: str, work: list[list[int]], out: int) -> None:
    """All of `work` at once, streamed."""

    async def one(prompt: list[int]) -> None:
        client = await LightClient.connect(url)
        assert await client.ask(completion_bytes(prompt, out)) == 200 and b"[DONE]" in client.tail
        client.close()

    await asyncio.gather(*(one(prompt) for prompt in work))


def completion_bytes(prompt: list[int], out: int) -> bytes:
    fields = {"max_tokens": out, "temperature": 0, "ignore_eos": True, "stream": True}
    return post_bytes("/v1/completions", {"prompt": prompt, **fields})


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
            uvloop.run(over_http(server.url, work, 64))
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
            uvloop.run(over_http(server.url, work, 100))
            clock = Clock(server)
            runs = []
            for _ in range(3):
                before = cpu_seconds(server.process.pid)
                for _ in range(2):
                    uvloop.run(over_http(server.url, work, 200))
                spent = cpu_seconds(server.process.pid) - before
                runs.append(round(spent / (2 * 64 * 200) * 1e6, 1))
            _, shared = clock.read()
    return {"microseconds_per_streamed_token": runs, "streams": 64, "cpu_used_by_others": shared}


@dataclass(frozen=True)
class Rate:
    per_second: float  # tokens the engine made
    per_cpu_second: float  # of engine, server and clients together: does not depend on what others leave of the machine
    others: float  # share of the machine that others used


class Crowd:
    """Clients that ask again and again; one turned away waits a little and comes back. Each keeps its connection."""

    def __init__(self, server: ServerProcess) -> None:
        self._server = server
        self._url = server.url
        self._open = True
        self.refusals: list[float] = []  # seconds from sending to the first byte of a 429
        self.health: list[float] = []  # seconds until /livez answered

    async def run(self, count: int) -> Rate:
        """How fast those let in were served, once the crowd had gathered."""
        clients = [asyncio.ensure_future(self._ask(prompt)) for prompt in prompts(count, 16, 5, 300)]
        probe = asyncio.ensure_future(self._probe())
        await asyncio.sleep(OVERLOAD_WARM_UP_S)
        self.refusals.clear()
        self.health.clear()
        clock, began, first = Clock(self._server), time.perf_counter(), await self._num_tokens()
        await asyncio.sleep(OVERLOAD_S)
        tokens, wall, (cpu, others) = await self._num_tokens() - first, time.perf_counter() - began, clock.read()
        self._open = False
        await asyncio.gather(probe, *clients)
        return Rate(tokens / wall, tokens / cpu, others)

    async def _ask(self, prompt: list[int]) -> None:
        request = completion_bytes(prompt, OVERLOAD_TOKENS)
        client = await LightClient.connect(self._url)
        while self._open:
            status = await client.ask(request)
            assert status in (200, 429)
            if status == 429:
                self.refusals.append(client.first_byte)
                await asyncio.sleep(RETRY_S)
        client.close()

    async def _probe(self) -> None:
        client = await LightClient.connect(self._url)
        while self._open:
            assert await client.ask(get_bytes("/livez")) == 200
            self.health.append(client.first_byte)
            await asyncio.sleep(0.1)
        client.close()

    async def _num_tokens(self) -> float:
        """By the engine's own counter: requests end in waves, and whole waves are too coarse a measure."""
        reader, writer = await connect(self._url)
        writer.write(get_bytes("/metrics", "connection: close"))
        text = (await reader.read()).decode()
        writer.close()
        return float(re.findall(r"^vllm:generation_tokens_total{.*} (.*)$", text, re.M)[0])


def overload() -> dict[str, Any]:
    """Room for 64 to run and 64 to wait on a tiny model; 64 clients, then 192. All of it shares the machine's cores."""
    with tempfile.TemporaryDirectory() as folder:
        model = make_tiny("llama", Path(folder) / "tiny")
        flags = ("--dtype", "float32", "--max-model-len", "512", "--max-queued-requests", "64", "--max-num-seqs", "64")
        with ServerProcess(model, *flags) as server:
            uvloop.run(over_http(server.url, prompts(64, 16, 5, 300), 20))
            runs = [_overload_run(server) for _ in range(OVERLOAD_RUNS)]
    return {"runs": runs}


def _overload_run(server: ServerProcess) -> dict[str, Any]:
    crowd = Crowd(server)
    peak, full = uvloop.run(Crowd(server).run(64)), uvloop.run(crowd.run(192))
    refusals, health = sorted(crowd.refusals), sorted(crowd.health)
    return {
        "tokens_per_second": {"64 clients": round(peak.per_second), "192 clients": round(full.per_second)},
        "tokens_per_cpu_second": {"64 clients": round(peak.per_cpu_second), "192 clients": round(full.per_cpu_second)},
        "cpu_used_by_others": {"64 clients": peak.others, "192 clients": full.others},
        "share_of_peak": round(full.per_second / peak.per_second, 3),
        "share_of_peak_per_cpu_second": round(full.per_cpu_second / peak.per_cpu_second, 3),
        "refused_per_second": round(len(refusals) / OVERLOAD_S, 1),
        "refusal_ms": {"median": _ms(refusals, 0.5), "p99": _ms(refusals, 0.99), "max": _ms(refusals, 1.0)},
        "refused_within_50_ms": round(sum(time < 0.05 for time in refusals) / len(refusals), 4),
        "livez_ms": {"median": _ms(health, 0.5), "max": _ms(health, 1.0)},
    }


def stalled() -> dict[str, Any]:
    """SmolLM2: gaps of running streams while long prompts arrive, with max_inter_token_ms and without."""
    return stalls.stalls(stalls.parser().parse_args([]))


def _ms(ordered: list[float], share: float) -> float:
    return round(ordered[min(int(share * len(ordered)), len(ordered) - 1)] * 1e3, 1) if ordered else 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--cases", default="", help="api_cpu, overload, stalls, throughput; all of them unless named")
    args = parser.parse_args()
    cases = {"api_cpu": api_cpu, "overload": overload, "stalls": stalled, "throughput": throughput}
    chosen = args.cases.split(",") if args.cases else list(cases)
    report = json.dumps({"machine": describe_machine(), **{name: cases[name]() for name in chosen}}, indent=2)
    print(report)
    if args.out:
        args.out.write_text(report + "\n")


if __name__ == "__main__":
    main()

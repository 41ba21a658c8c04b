"""Times one engine in a process of its own. An engine is a function from requests to the number of tokens each got.

A driver calls `drive`; it prints one JSON line per case. Nothing here needs more than Python itself.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.peers.workloads import Request, random_request, requests

Run = Callable[[Sequence[Request]], list[int]]
FIRST_TOKEN = "FIRST TOKEN"  # printed by a driver that was asked for no more
_WARM_UP = 16  # tokens of some requests, before a case is timed
_MOST_WAITED = 20.0  # seconds for others to leave the machine
_HZ = os.sysconf("SC_CLK_TCK")


def drive(name: str, open_engine: Callable[[argparse.Namespace], tuple[Run, dict[str, str]]]) -> None:
    """`open_engine(args)` -> the engine, and the versions of what it is made of."""
    args = _arguments()
    start = time.perf_counter()
    run, versions = open_engine(args)
    if args.first_token:
        run([random_request(random.Random(7), 32, 1)])
        print(FIRST_TOKEN, flush=True)
        os._exit(0)
    about = {"engine": name, "setting": args.setting, "threads": args.threads, "versions": versions}
    about["load_s"] = round(time.perf_counter() - start, 2)
    for case in args.cases.split(","):
        line = {**about, "case": case, **_measure(run, case, args.repetitions)}
        print(json.dumps({**line, "peak_rss_mb": _peak_rss_mb()}), flush=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--setting", default="", help="what tells this way of running the engine from others")
    parser.add_argument("--options", type=json.loads, default={}, help="JSON, for the engine")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--cases", default="a,b,c,d")
    parser.add_argument("--first-token", action="store_true", help="one token, then leave at once")
    return parser.parse_args()


def _measure(run: Run, case: str, repetitions: int) -> dict[str, Any]:
    rates, seconds, others = [], [], []
    run([Request(request.prompt, min(request.num_output, _WARM_UP)) for request in requests(case, 0)[:8]])
    for repetition in range(1, repetitions + 1):
        rate, taken, disturbed = once(run, case, repetition)
        print(f"# {case} {repetition} {taken:.3f} s, {rate:.1f}/s, others {disturbed:.2f}", file=sys.stderr, flush=True)
        rates.append(rate)
        seconds.append(round(taken, 4))
        others.append(round(disturbed, 2))
    result: dict[str, Any] = {"tokens_per_second": round(statistics.median(rates), 1), "seconds": seconds}
    if case == "c":
        result["decode_tokens_per_second"] = round(_decode_rate(run, case, statistics.median(seconds)), 1)
    return {**result, "cores_used_by_others": others}


def _decode_rate(run: Run, case: str, taken: float) -> float:
    """Tokens per second after the first ones, of a run that took so many seconds."""
    work = requests(case, 100)
    first, _ = _timed(run, [Request(request.prompt, 1) for request in work])
    return sum(request.num_output - 1 for request in work) / (taken - first)


def once(run: Run, case: str, repetition: int) -> tuple[float, float, float]:
    """-> tokens per second, seconds, cores that others used meanwhile"""
    work = requests(case, repetition)
    first = 0.0
    if case == "a":  # the first token is left out: this case is about decoding
        prompt = requests(case, repetition + 100)[0].prompt
        first, _ = _timed(run, [Request(prompt, 1)])
    taken, others = _timed(run, work)
    if case == "a":
        return (work[0].num_output - 1) / (taken - first), taken, others
    counted = len(work[0].prompt) if case == "b" else sum(request.num_output for request in work)
    return counted / taken, taken, others


def _timed(run: Run, work: list[Request]) -> tuple[float, float]:
    _wait_for_quiet()
    all_before, own_before = _busy_seconds()
    start = time.perf_counter()
    given = run(work)
    taken = time.perf_counter() - start
    all_after, own_after = _busy_seconds()
    if list(given) != [request.num_output for request in work]:
        raise RuntimeError(f"asked for {[request.num_output for request in work]} tokens, got {given}")
    return taken, max(all_after - all_before - (own_after - own_before), 0.0) / taken


def _wait_for_quiet() -> None:
    begun = time.monotonic()
    while time.monotonic() - begun < _MOST_WAITED:
        all_before, own_before = _busy_seconds()
        time.sleep(0.3)
        all_after, own_after = _busy_seconds()
        if (all_after - all_before - (own_after - own_before)) / 0.3 < 0.25:
            return


def _busy_seconds() -> tuple[float, float]:
    """CPU seconds spent so far by the whole machine, and by this process and its children."""
    ticks = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    user, nice, system, _idle, _iowait, irq, softirq, steal = ticks
    own = sum(_ticks_of(pid) for pid in _family())
    return (user + nice + system + irq + softirq + steal) / _HZ, own / _HZ


def _family() -> list[int]:
    """This process and all that descend from it."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (fields := _stat(int(entry.name))):
            children.setdefault(int(fields[1]), []).append(int(entry.name))
    family = [os.getpid()]
    for pid in family:
        family += children.get(pid, [])
    return family


def _ticks_of(pid: int) -> int:
    fields = _stat(pid)
    return sum(map(int, fields[11:15])) if fields else 0


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat after the name; empty once the process is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return []


def _peak_rss_mb() -> int:
    total = 0
    for pid in _family():
        try:
            lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        except OSError:
            continue
        total += sum(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
    return total // 1024

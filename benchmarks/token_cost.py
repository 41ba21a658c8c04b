"""CPU per streamed token in the engine's and the API's process, of this checkout and, beside it, of another.

    python -m benchmarks.token_cost [--beside FOLDER] [--api 1 2] [--streams 256] [--output 256] [--rounds 3]
        [--out results.json]

The engine computes nothing (`benchmarks.quiet_engine`). Checkouts take turns, round by round, in one run; each figure
is the median of the rounds. Then once more with the engine's parts timed.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from benchmarks.http_streams import client
from benchmarks.machine import describe_machine
from benchmarks.serve import prompts
from cadence.core.contract.codec import decode_from_engine, encode
from cadence.core.contract.messages import FromEngine
from cadence.core.contract.update import RequestUpdate, TokenUpdates
from cadence.engine.supervise.journal import Journal
from tests.helpers.fake_engine import make_entry
from tests.helpers.tiny_models import make_tiny
from tests.server.helpers import ServerProcess

ROOT = Path(__file__).parents[1]
START_S = 60.0


class QuietServer(ServerProcess):
    """Of the checkout in a folder."""

    def __init__(self, root: Path, model: Path, api: int, profile: str = "") -> None:
        self._log = tempfile.NamedTemporaryFile("w+", prefix="cadence-quiet-", suffix=".log")  # noqa: SIM115
        words = [sys.executable, str(root / "benchmarks" / "quiet_engine.py"), "serve", str(model), "--port", "0"]
        words += ["--max-model-len", "512", "--api-server-count", str(api), "--disable-uvicorn-access-log"]
        given = {**os.environ, "PYTHONPATH": str(root), "PYTHONUNBUFFERED": "1", "QUIET_PROFILE": profile}
        self.process = subprocess.Popen(
            words, cwd=root, stdout=self._log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, env=given
        )
        self.url = ""


class Crowd:
    """Processes with `streams` in all, which wait for each other before and after a round."""

    def __init__(self, url: str, asked: argparse.Namespace) -> None:
        context = multiprocessing.get_context("spawn")
        self._ready, self._done = (context.Barrier(asked.clients + 1) for _ in range(2))
        work = prompts(asked.streams, asked.input, 5, 300)
        parts = [work[number :: asked.clients] for number in range(asked.clients)]
        given = [(url, part, asked.output, self._ready, self._done) for part in parts]
        self._clients = [context.Process(target=client, args=each, daemon=True) for each in given]
        for each in self._clients:
            each.start()

    def round(self) -> None:
        self._ready.wait(START_S)
        self._done.wait(START_S)

    def end(self) -> None:
        for each in self._clients:
            each.kill()


def cpu_by_role(server: ServerProcess) -> dict[str, float]:
    """Seconds of CPU so far, of each kind of process."""
    spent: dict[str, float] = {"engine": 0.0, "api": 0.0, "front": 0.0}
    root = psutil.Process(server.process.pid)
    for process in (root, *root.children(recursive=True)):
        words = process.cmdline()
        role = "engine" if words[-1] == "engine" else "api" if any("api_process" in word for word in words) else "front"
        times = process.cpu_times()
        spent[role] += times.user + times.system
    return spent


def cost_of_round(server: ServerProcess, crowd: Crowd, tokens: int) -> dict[str, float]:
    """Microseconds per token by kind of process; a front that streams itself is an API process."""
    before, start = cpu_by_role(server), time.perf_counter()
    crowd.round()
    took, after = time.perf_counter() - start, cpu_by_role(server)
    spent = {role: (after[role] - before[role]) / tokens * 1e6 for role in after}
    return {"engine": spent["engine"], "api": spent["api"] or spent["front"], "tokens_per_s": tokens / took}


def beside(roots: dict[str, Path], model: Path, api: int, asked: argparse.Namespace) -> dict[str, Any]:
    servers = {name: QuietServer(root, model, api).wait_ready(START_S) for name, root in roots.items()}
    crowds = {name: Crowd(server.url, asked) for name, server in servers.items()}
    tokens, found = asked.streams * asked.output, {name: [] for name in roots}
    try:
        for number in range(1 + asked.rounds):
            for name in roots:
                cost = cost_of_round(servers[name], crowds[name], tokens)
                if number:  # the first one warms up
                    found[name].append(cost)
    finally:
        for name in roots:
            crowds[name].end()
            servers[name].stop()
    medians = {
        name: {part: round(statistics.median(one[part] for one in costs), 2) for part in costs[0]}
        for name, costs in found.items()
    }
    return {"api_processes": api, **medians}


def engine_parts(root: Path, model: Path, asked: argparse.Namespace) -> dict[str, float]:
    """Microseconds per token of the engine's main thread, by part."""
    with tempfile.TemporaryDirectory() as folder:
        server = QuietServer(root, model, 2, folder).wait_ready(START_S)
        crowd = Crowd(server.url, asked)
        for _ in range(2):
            crowd.round()
        crowd.end()
        server.stop()
        (written,) = Path(folder).glob("engine-*.json")
        seconds = json.loads(written.read_text(encoding="utf-8"))
    tokens, total, start = seconds.pop("tokens"), seconds.pop("total"), seconds.pop("start")
    seconds["rest"] = total - start - sum(seconds.values())
    return {part: round(spent / tokens * 1e6, 2) for part, spent in {**seconds, "all": total - start}.items()}


def message_costs(rows: int = 256) -> dict[str, dict[str, float]]:
    """Microseconds per token, and bytes, of a step's message: with an update for each row, and by number."""
    names, journal = [f"cmpl-{number:032x}-0" for number in range(rows)], Journal(1.0)
    for name in names:
        journal.add(make_entry(name, 1, 10**6))
    journal.take_due(0.0, rows)
    updates = [RequestUpdate(name, [40], (), (), None, None, 0, 0, 1.5) for name in names]
    for number, update in enumerate(updates, 1):
        update.number = number
        journal.record(update)
    forms = {"updates": FromEngine(updates=updates)}
    forms["by number"] = FromEngine(tokens=TokenUpdates(list(range(1, 1 + rows)), [40] * rows))
    found = {}
    for form, message in forms.items():
        data = encode(message)
        found[form] = {
            "bytes": round(len(data) / rows, 1),
            "encode": _best_us(lambda message=message: encode(message), rows),
            "decode": _best_us(lambda data=data: decode_from_engine(data), rows),
            "journal": _best_us(
                lambda message=message: (
                    [journal.record(one) for one in message.updates],
                    journal.record_tokens(message.tokens),
                ),
                rows,
            ),
        }
    return found


def _best_us(work: Callable[[], Any], rows: int) -> float:
    taken = []
    for _ in range(300):
        start = time.thread_time()
        work()
        taken.append(time.thread_time() - start)
    return round(min(taken) / rows * 1e6, 3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--beside", type=Path, help="another checkout, measured in turns with this one")
    parser.add_argument("--api", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--streams", type=int, default=256)
    parser.add_argument("--clients", type=int, default=2)
    parser.add_argument("--input", type=int, default=64)
    parser.add_argument("--output", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    roots = {"this": ROOT} | ({"beside": asked.beside.resolve()} if asked.beside else {})
    report: dict[str, Any] = {"machine": describe_machine(), "streams": asked.streams, "output": asked.output}
    report["message"] = message_costs()
    print(json.dumps(report["message"]), flush=True)
    if not asked.rounds:
        return
    with tempfile.TemporaryDirectory() as folder:
        model = make_tiny("llama", Path(folder) / "tiny")
        report["cpu_us_per_token"] = [beside(roots, model, api, asked) for api in asked.api]
        print(json.dumps(report["cpu_us_per_token"], indent=1), flush=True)
        report["engine_parts_us_per_token"] = {name: engine_parts(root, model, asked) for name, root in roots.items()}
        print(json.dumps(report["engine_parts_us_per_token"], indent=1), flush=True)
    if asked.out:
        asked.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

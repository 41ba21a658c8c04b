"""After a batch the server is as it was: the same answers, nothing held, no memory, descriptors or threads kept."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import httpx

from tests.hostile import canary, processes
from tests.hostile.bounds import Bounds

_POLL_S = 0.05
_TRACE = "Traceback (most recent call last):\n"
_LOOKS = 6  # that must be alike before a server counts as settled
_MOST_LOOKS = 100
_PAIRS = ("cadence.text.service.text_process",)  # one for texts, one for templates, each started when it is needed
# What canaries do not touch: threads, the text process, and the engine's compiler of grammars.
_WARM_UPS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("/detokenize", {"tokens": [5, 6]}),
    ("/tokenize", {"prompt": "a b " * 50, "return_token_strs": True}),
    ("/v1/completions", {"prompt": "word " * 20_000}),
    ("/v1/completions", {"prompt": "a", "max_tokens": 1, "structured_outputs": {"choice": ["a"]}}),
)
_WARM_UP = 40  # requests at once, so that pools of threads have their size


@dataclass(frozen=True)
class Target:
    """A running server. `pid` 0: an application in this process, whose memory is not only its own."""

    url: str
    pid: int = 0
    log: Callable[[], str] = str
    is_warm: bool = False  # `warm_up` was called

    def client(self) -> httpx.Client:
        return httpx.Client(base_url=self.url, trust_env=False, verify=False, timeout=600.0)


def warm_up(target: Target) -> None:
    with target.client() as client, ThreadPoolExecutor(_WARM_UP // 4) as pool:
        for path, body in (*canary.CANARIES, *_WARM_UPS):
            list(pool.map(lambda _, p=path, b=body: client.post(p, json=b), range(_WARM_UP)))


class Health:
    """Made while the server is idle: that is the state it must come back to."""

    def __init__(self, target: Target, bounds: Bounds) -> None:
        self._target = target
        self._bounds = bounds
        self.peak_mb: dict[str, float] = {}
        if not target.is_warm:
            warm_up(target)
        with target.client() as client:
            self._answers = canary.ask(client)
        refused = [answer for answer in self._answers if answer.startswith("status")]
        if refused:
            raise RuntimeError(f"the server does not answer its canaries: {refused}")
        self._seen_log = len(target.log())
        self._engine = processes.engine_pid(target.pid) if target.pid else 0
        self._start = self._settled_totals()
        self.start_mb = {role: usage[0] for role, usage in self._start.items()}

    def check(self) -> list[str]:
        """What has changed for the worse."""
        found = []
        try:
            with self._target.client() as client:
                found += self._idle(client)
                if canary.ask(client) != self._answers:
                    found.append("a canary gives another answer than at the start")
        except httpx.HTTPError as error:
            return [f"the server does not answer: {type(error).__name__} {error}", *self._log_problems()]
        if self._target.pid:
            found += self._process_problems()
        return [*found, *self._log_problems()]

    def is_alive(self) -> bool:
        try:
            with self._target.client() as client:
                return client.get("/health").status_code == 200
        except httpx.HTTPError:
            return False

    def _idle(self, client: httpx.Client) -> list[str]:
        ends = time.monotonic() + self._bounds.scaled(self._bounds.settle_s)
        while True:
            problem = _busy(client)
            if not problem:
                return []
            if time.monotonic() > ends:
                return [problem]
            time.sleep(_POLL_S)

    def _process_problems(self) -> list[str]:
        found = []
        engine = processes.engine_pid(self._target.pid)
        if engine != self._engine:
            found.append(f"the engine died: its pid was {self._engine} and is {engine}")
            self._engine = engine
        ends = time.monotonic() + self._bounds.scaled(self._bounds.settle_s)
        while (changed := self._changes()) and time.monotonic() < ends:
            time.sleep(_POLL_S)
        if changed:
            self._start = self._totals()  # what has grown is told once, unless it grows further
        return found + changed

    def _changes(self) -> list[str]:
        found, bounds = [], self._bounds
        for role, (memory, descriptors, threads) in self._totals().items():
            start = self._start.setdefault(role, (memory, descriptors, threads))
            self.peak_mb[role] = max(memory, self.peak_mb.get(role, 0.0))
            if memory > bounds.rss_limit(start[0]):
                found.append(f"{role} has {memory:.0f} MB, at the start {start[0]:.0f} MB")
            if descriptors > start[1] + bounds.extra_descriptors:
                found.append(f"{role} has {descriptors} descriptors, at the start {start[1]}")
            if threads > start[2] + bounds.extra_threads:
                found.append(f"{role} has {threads} threads, at the start {start[2]}")
        return found

    def _totals(self) -> dict[str, tuple[float, int, int]]:
        """(MB, descriptors, threads) by role; where a role has several processes, each of them begins when it does."""
        totals: dict[str, tuple[float, int, int]] = {}
        for one in processes.usages(self._target.pid) if self._target.pid else ():
            role = one.role
            if role in totals and role in _PAIRS:
                role = f"{role}, the other"
            memory, descriptors, threads = totals.get(role, (0.0, 0, 0))
            totals[role] = memory + one.rss_mb, descriptors + one.descriptors, threads + one.threads
        return totals

    def _settled_totals(self) -> dict[str, tuple[float, int, int]]:
        """Once descriptors and threads no longer change: connections that were used a moment ago are closed."""
        seen = [self._totals()]
        while len(seen) < _MOST_LOOKS and (len(seen) < _LOOKS or len({_counts(one) for one in seen[-_LOOKS:]}) > 1):
            time.sleep(_POLL_S)
            seen.append(self._totals())
        return seen[-1]

    def _log_problems(self) -> list[str]:
        new = self._target.log()[self._seen_log :]
        self._seen_log += len(new)
        return [f"a trace in the log: {trace}" for trace in dict.fromkeys(_traces(new))]


def _counts(totals: dict[str, tuple[float, int, int]]) -> tuple[tuple[str, int, int], ...]:
    return tuple((role, descriptors, threads) for role, (_, descriptors, threads) in totals.items())


def _traces(log: str) -> Iterator[str]:
    """Of each trace what was logged with it, its last frame and the exception."""
    parts = log.split(_TRACE)
    for before, part in itertools.pairwise(parts):
        lines = part.splitlines()
        end = next((n for n, line in enumerate(lines) if not line.startswith(" ")), len(lines) - 1)
        said = before.strip().rpartition("\n")[2]
        yield " ".join([said, *(line.strip() for line in lines[max(0, end - 3) : end + 1])])[:700]


def _busy(client: httpx.Client) -> str:
    """ "" when nothing runs, nothing waits and every KV block is free or cached."""
    reply = client.get("/engine/state")
    if reply.status_code != 200:
        return f"/engine/state says {reply.status_code}: {reply.text[:200]}"
    state = reply.json()
    if state["running"] or state["waiting"]:
        return f"{state['num_running']} requests run and {state['num_waiting']} wait though nobody asks"
    blocks = state["blocks"]
    lost = blocks["count"] - blocks["free"] - blocks["cached"]
    return f"{lost} KV blocks are still held" if lost else ""

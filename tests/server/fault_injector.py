"""Kills and stops the engine of a real server at random moments, while streams run: each must end once, with the tokens
of a solo run or the honest error of quarantine, and the server must serve afterwards.

    python -m tests.server.fault_injector MODEL [--rounds 300] [--engine toy|poison] [--seed 0]
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import resource
import signal
import socket
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.server.helpers import ServerProcess
from tests.server.ledger import assert_nothing_lost
from tests.server.streams import connect, request_bytes

FLAGS = ("--max-model-len", "512", "--num-gpu-blocks-override", "4000", "--engine-heartbeat-timeout", "1.5")
NUM_STREAMS = 12
MAX_TOKENS = 200
PATIENCE_S = 600.0  # for all streams of a round
QUARANTINED = "times while this request was in it"


@dataclass(frozen=True)
class Ending:
    status: int
    text: str
    done: bool  # the stream ended with [DONE]
    error: str


@dataclass
class Tally:
    rounds: Counter[str] = field(default_factory=Counter)  # by fault
    num_streams: int = 0
    num_quarantined: int = 0
    longest_s: float = 0.0

    def __str__(self) -> str:
        faults = ", ".join(f"{name} {count}" for name, count in sorted(self.rounds.items()))
        return (
            f"{self.rounds.total()} rounds ({faults}): {self.num_streams} streams, {self.num_quarantined} ended by "
            f"quarantine, the others with the tokens of a solo run; longest round {self.longest_s:.1f} s"
        )


async def read_stream(url: str, number: int, on_begin: Callable[[], None] = lambda: None) -> Ending:
    reader, writer = await connect(url)
    body = {"prompt": [5 + number, 6, 7], "max_tokens": MAX_TOKENS, "seed": number, "ignore_eos": True, "stream": True}
    try:
        writer.write(request_bytes("/v1/completions", {**body, "temperature": 0.8 if number % 2 else 0}))
        status, text, done, error = int((await reader.readline()).split()[1]), "", False, ""
        on_begin()
        async for line in reader:
            assert not (line.startswith(b"data: ") and (done or error)), "something after the end"
            if line.startswith(b"data: [DONE]"):
                done = True
            elif line.startswith(b"data: "):
                event = json.loads(line[6:])
                text += "".join(choice["text"] for choice in event.get("choices", ()))
                error = event.get("error", {}).get("message", "")
        return Ending(status, text, done, error)
    finally:
        writer.close()


def engine_of(server: ServerProcess) -> int:
    """0 while there is none."""
    pid = server.process.pid
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        with contextlib.suppress(OSError):
            words = Path(f"/proc/{child}/cmdline").read_text().split("\0")
            if "cadence.engine.core_process" in words or ("tests.server.engines" in words and "serve" not in words):
                state = Path(f"/proc/{child}/stat").read_text().rsplit(")", 1)[1].split()[0]
                return 0 if state == "Z" else int(child)
    return 0


async def next_engine(server: ServerProcess, old: int) -> int:
    ends = time.monotonic() + PATIENCE_S
    while (engine := engine_of(server)) in (0, old):
        assert time.monotonic() < ends, f"no engine was started\n{server.output()}"
        await asyncio.sleep(0.002)
    return engine


def strike(engine: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(engine, number)


class FaultInjector:
    def __init__(self, server: ServerProcess, seed: int) -> None:
        self._server = server
        self._rng = random.Random(seed)
        self._expected: list[Ending] = []
        self._num_begun = 0  # streams of this round
        self.tally = Tally()

    async def run(self, rounds: int) -> None:
        self._expected = [await read_stream(self._server.url, number) for number in range(NUM_STREAMS)]
        assert all(ending.done and ending.text for ending in self._expected)
        faults = [self.anywhere, self.at_birth, self.handing_over, self.twice, self.no_descriptors]
        for number in range(rounds):
            await self._round(faults[number % len(faults)])
            await self._canary()
        await asyncio.to_thread(assert_nothing_lost, self._server)

    async def drain(self) -> None:
        """The server's last round: its engine dies while it drains."""
        await self._round(self.draining)
        assert await asyncio.to_thread(self._server.wait, 240) == 0

    async def anywhere(self) -> None:
        await asyncio.sleep(self._rng.uniform(0, 0.8))
        strike(engine_of(self._server), self._signal())

    async def at_birth(self) -> None:
        engine = await self._killed()
        await asyncio.sleep(self._rng.uniform(0, 0.2))
        strike(engine, signal.SIGSTOP if self._rng.random() < 0.1 else signal.SIGKILL)

    async def handing_over(self) -> None:
        """As soon as the next engine has its requests, or is about to get them."""
        engine = await self._killed()
        while engine_of(self._server) == engine and not await self._is_ready():
            await asyncio.sleep(0.002)
        strike(engine, self._signal())

    async def twice(self) -> None:
        first = await self._killed()
        await asyncio.sleep(self._rng.uniform(0, 0.2))
        strike(first, signal.SIGKILL)
        second = await next_engine(self._server, first)
        await asyncio.sleep(self._rng.uniform(0, 1.0))
        strike(second, signal.SIGKILL)

    async def no_descriptors(self) -> None:
        while self._num_begun < NUM_STREAMS:  # a connection that is not accepted by now would be closed
            await asyncio.sleep(0.002)
        with starved(self._server):
            strike(engine_of(self._server), signal.SIGKILL)
            await asyncio.sleep(0.3)
            await next_engine(self._server, 0)

    async def draining(self) -> None:
        await asyncio.sleep(0.3)
        self._server.signal(signal.SIGTERM)
        await asyncio.sleep(self._rng.uniform(0, 0.1))
        strike(engine_of(self._server), self._signal())

    async def _round(self, fault: Callable[[], Awaitable[None]]) -> None:
        began, self._num_begun, url = time.monotonic(), 0, self._server.url
        streams = asyncio.gather(*(read_stream(url, number, self._begin) for number in range(NUM_STREAMS)))
        await asyncio.sleep(0.05)
        async with asyncio.timeout(PATIENCE_S):
            await fault()
            endings = await streams
        for ending, expected in zip(endings, self._expected, strict=True):
            self._judge(ending, expected)
        self.tally.rounds[fault.__name__] += 1
        self.tally.num_streams += NUM_STREAMS
        self.tally.longest_s = max(self.tally.longest_s, time.monotonic() - began)

    def _begin(self) -> None:
        self._num_begun += 1

    def _judge(self, ending: Ending, expected: Ending) -> None:
        if ending.error:
            assert QUARANTINED in ending.error and not ending.done, (ending, self._server.output())
            assert expected.text.startswith(ending.text)
            self.tally.num_quarantined += 1
        else:
            assert ending == expected, (ending, expected, self._server.output())

    async def _canary(self) -> None:
        async with asyncio.timeout(PATIENCE_S):
            assert await read_stream(self._server.url, 0) == self._expected[0]
            assert await self._is_ready()

    async def _killed(self) -> int:
        """Kills the engine in the middle of the streams. -> its successor"""
        await asyncio.sleep(self._rng.uniform(0, 0.3))
        old = engine_of(self._server)
        strike(old, signal.SIGKILL)
        return await next_engine(self._server, old)

    async def _is_ready(self) -> bool:
        reader, writer = await connect(self._server.url)
        try:
            writer.write(b"GET /readyz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
            return b" 200 " in await reader.readline()
        finally:
            writer.close()

    def _signal(self) -> int:
        return self._rng.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGSTOP])


@contextlib.contextmanager
def starved(server: ServerProcess) -> Iterator[None]:
    """The server can open no descriptor: its limit is lowered to those it has, and connections take the gaps."""
    pid = server.process.pid
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    highest = max(int(name) for name in os.listdir(f"/proc/{pid}/fd"))
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (highest + 1, before[1]))
    host, port = server.url.removeprefix("http://").split(":")
    idle = [socket.create_connection((host, int(port)), timeout=240) for _ in range(highest + 1)]
    try:
        yield
    finally:
        for connection in idle:
            connection.close()
        resource.prlimit(pid, resource.RLIMIT_NOFILE, before)


async def inject(model: Path, engine: str, rounds: int, seed: int) -> Tally:
    with ServerProcess(model, *FLAGS, engine=engine) as server:
        injector = FaultInjector(server, seed)
        await injector.run(rounds - 1)
        await injector.drain()
        return injector.tally


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=Path)
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--engine", default="toy")
    parser.add_argument("--seed", type=int, default=0)
    options: Any = parser.parse_args()
    print(asyncio.run(inject(options.model, options.engine, options.rounds, options.seed)))


if __name__ == "__main__":
    main()

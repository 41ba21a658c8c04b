"""What goes wrong in the field, done on purpose to the real server. Nothing is lost, nobody else is disturbed."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.server.helpers import ServerProcess
from tests.server.streams import connect, read_some_and_leave, request_bytes, stream_completion

FLAGS = ("--dtype", "float32", "--max-model-len", "512", "--num-gpu-blocks-override", "4000", "--max-num-seqs", "64")


@pytest.fixture(scope="module")
def server(tiny_model: Callable[[str], Path]) -> Iterator[ServerProcess]:
    with ServerProcess(tiny_model("llama"), *FLAGS) as running:
        yield running


def body(number: int, max_tokens: int = 100) -> dict[str, Any]:
    return {
        "prompt": [5 + number % 200, 6, 7 + number % 11],
        "max_tokens": max_tokens,
        "temperature": 0.8 if number % 2 else 0,
        "seed": number,
        "ignore_eos": True,
    }


async def together(url: str, count: int, max_tokens: int = 100) -> list[tuple[int, str, bool]]:
    return list(await asyncio.gather(*(stream_completion(url, body(n, max_tokens)) for n in range(count))))


def engine_of(server: ServerProcess) -> int:
    children = Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children").read_text().split()
    (engine,) = [int(pid) for pid in children if "core_process" in Path(f"/proc/{pid}/cmdline").read_text()]
    return engine


def counters(server: ServerProcess) -> dict[str, float]:
    """The admission counters, by the last word of their names."""
    found = {}
    with server.client() as client:
        for line in client.get("/metrics").text.splitlines():
            if line.startswith("cadence:http_requests_"):
                name, value = line.rsplit(" ", 1)
                found[name.split("{")[0].removeprefix("cadence:http_requests_").removesuffix("_total")] = float(value)
    return found


def assert_nothing_lost(server: ServerProcess) -> None:
    """accepted = finished + failed + aborted + in flight, at any time; and once all is quiet no block is held."""
    deadline = time.monotonic() + 10
    while True:
        now = counters(server)
        assert now["accepted"] == now["finished"] + now["failed"] + now["aborted"] + now["in_flight"], now
        with server.client() as client:
            state = client.get("/engine/state").json()
        held = bool(state["running"] or state["waiting"])
        if now["in_flight"] == 0 and not held:
            return
        assert time.monotonic() < deadline, (now, state["running"])
        time.sleep(0.1)


def test_killing_the_engine_only_makes_a_pause(server: ServerProcess) -> None:
    async def disturbed() -> list[tuple[int, str, bool]]:
        streams = asyncio.gather(*(stream_completion(server.url, body(n)) for n in range(50)))
        await asyncio.sleep(0.6)
        os.kill(engine_of(server), signal.SIGKILL)
        return list(await streams)

    expected = asyncio.run(together(server.url, 50))
    assert asyncio.run(disturbed()) == expected
    assert all(status == 200 and done for status, _, done in expected)
    assert_nothing_lost(server)


def test_five_hundred_disconnects_at_random_bytes(server: ServerProcess) -> None:
    async def leave() -> None:
        rng = random.Random(1)
        for _ in range(10):
            await asyncio.gather(
                *(read_some_and_leave(server.url, body(n, 60), rng.randrange(6000)) for n in range(50))
            )

    expected = asyncio.run(together(server.url, 4))
    asyncio.run(leave())
    assert_nothing_lost(server)
    assert asyncio.run(together(server.url, 4)) == expected


def test_readers_that_stop_reading_hold_up_nobody(server: ServerProcess) -> None:
    async def stall() -> list[tuple[int, str, bool]]:
        sleepers = []
        for n in range(50):
            _, writer = await connect(server.url)
            writer.transport.pause_reading()  # type: ignore[attr-defined]
            writer.write(request_bytes("/v1/completions", {**body(n, 400), "stream": True}))
            sleepers.append(writer)
        answers = await asyncio.gather(*(stream_completion(server.url, body(n)) for n in range(4)))
        for writer in sleepers:
            writer.transport.abort()
        return list(answers)

    expected = asyncio.run(together(server.url, 4))
    assert asyncio.run(stall()) == expected
    assert_nothing_lost(server)


def test_a_request_that_fails_in_the_step_fails_alone(server: ServerProcess) -> None:
    """Every token is forbidden to it: it can only fail, in the middle of a batch."""
    doomed = {"prompt": [5, 6], "allowed_token_ids": [9], "bad_words": ["zzz"], "max_tokens": 4}
    with server.client() as client:
        word = client.post("/detokenize", json={"tokens": [9]}).json()["prompt"]
        doomed["bad_words"] = [word]
        answer = client.post("/v1/completions", json=doomed)
        healthy = client.post("/v1/completions", json=body(1))
    assert answer.status_code >= 400 and "no token" in answer.json()["error"]["message"]
    assert healthy.status_code == 200
    assert_nothing_lost(server)


def test_an_overfull_server_says_so_and_lives(tiny_model: Callable[[str], Path]) -> None:
    with ServerProcess(tiny_model("llama"), *FLAGS, "--max-queued-requests", "20") as small:
        answers = asyncio.run(together(small.url, 120))
        statuses = [status for status, _, _ in answers]
        assert set(statuses) == {200, 429} and statuses.count(200) >= 20
        with small.client() as client:
            assert client.get("/livez").status_code == 200
        assert_nothing_lost(small)


def test_sigterm_drains(tiny_model: Callable[[str], Path]) -> None:
    async def under_load(server: ServerProcess) -> list[tuple[int, str, bool]]:
        streams = asyncio.gather(*(stream_completion(server.url, body(n, 200)) for n in range(20)))
        await asyncio.sleep(0.7)
        server.signal(signal.SIGTERM)
        return list(await streams)

    with ServerProcess(tiny_model("llama"), *FLAGS) as server:
        answers = asyncio.run(under_load(server))
        assert all(status == 200 and done and text for status, text, done in answers)
        assert server.wait(10) == 0


def test_the_engine_does_not_outlive_a_killed_server(tiny_model: Callable[[str], Path]) -> None:
    shared = set(os.listdir("/dev/shm"))
    with ServerProcess(tiny_model("llama"), *FLAGS) as server:
        engine = engine_of(server)
        server.signal(signal.SIGKILL)
        server.wait(5)
        deadline = time.monotonic() + 3
        while Path(f"/proc/{engine}").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not Path(f"/proc/{engine}").exists()
    assert set(os.listdir("/dev/shm")) <= shared


def test_a_port_in_use_is_one_clear_line(tiny_model: Callable[[str], Path]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        words = [sys.executable, "-m", "cadence.entrypoints.cli.main", "serve", str(tiny_model("llama"))]
        done = subprocess.run([*words, "--port", port], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1 and port in done.stderr and "Traceback" not in done.stderr


def test_health_stays_quick_under_load(server: ServerProcess) -> None:
    async def probe(client: httpx.AsyncClient, stop: asyncio.Event) -> list[int]:
        codes = []
        while not stop.is_set():
            codes.append((await client.get("/livez", timeout=5)).status_code)
            await asyncio.sleep(0.05)
        return codes

    async def both() -> list[int]:
        stop = asyncio.Event()
        async with httpx.AsyncClient(base_url=server.url, trust_env=False) as client:
            probing = asyncio.ensure_future(probe(client, stop))
            await together(server.url, 64)
            stop.set()
            return await probing

    codes = asyncio.run(both())
    assert codes and set(codes) == {200}

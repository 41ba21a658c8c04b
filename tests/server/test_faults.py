"""What goes wrong in the field, done on purpose to the real server. Nothing is lost, nobody else is disturbed."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.helpers.processes import children_of
from tests.server.helpers import ServerProcess
from tests.server.ledger import assert_nothing_lost, read_counters, watched
from tests.server.streams import connect, read_some_and_leave, request_bytes, stream_completion

pytestmark = pytest.mark.warm

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
    (engine,) = children_of(server.process.pid, "core_process")
    return engine.pid


def test_killing_the_engine_only_makes_a_pause(server: ServerProcess) -> None:
    async def disturbed() -> list[tuple[int, str, bool]]:
        async with watched(server):
            streams = asyncio.gather(*(stream_completion(server.url, body(n)) for n in range(50)))
            await asyncio.sleep(0.6)
            os.kill(engine_of(server), signal.SIGKILL)
            return list(await streams)

    expected = asyncio.run(together(server.url, 50))
    before = assert_nothing_lost(server)
    assert asyncio.run(disturbed()) == expected
    assert all(status == 200 and done for status, _, done in expected)
    after = assert_nothing_lost(server)
    assert after["finished"] == before["finished"] + 50 and after["failed"] == before["failed"]


def test_drafts_come_back_with_the_engine(server: ServerProcess, tiny_model: Callable[[str], Path]) -> None:
    """Killed in the middle of streams that speculate: each says what it says without drafts, and has drafts again."""
    drafts = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_min": 1, "adaptive": False}
    bodies = [{**body(n, max_tokens=400), "repetition_penalty": 0.5} for n in range(12)]  # they repeat themselves
    with ServerProcess(tiny_model("llama"), *FLAGS, "--speculative-config", json.dumps(drafts)) as drafting:

        async def all_of(url: str) -> list[tuple[int, str, bool]]:
            return list(await asyncio.gather(*(stream_completion(url, each) for each in bodies)))

        async def disturbed() -> tuple[list[tuple[int, str, bool]], int]:
            streams = asyncio.create_task(all_of(drafting.url))
            while not (kept := await asyncio.to_thread(drafts_kept, drafting)):
                await asyncio.sleep(0.01)
            os.kill(engine_of(drafting), signal.SIGKILL)
            assert not streams.done()
            return await streams, kept

        killed = engine_of(drafting)
        expected = asyncio.run(all_of(server.url))
        found, kept_before = asyncio.run(disturbed())
        assert found == expected and all(status == 200 and done for status, _, done in found)
        assert engine_of(drafting) != killed
        assert drafts_kept(drafting) > 0 and kept_before > 0, "counted by the engine: anew after its death"
        assert_nothing_lost(drafting)


def drafts_kept(server: ServerProcess) -> int:
    name = "vllm:spec_decode_num_accepted_tokens_total"
    lines = httpx.get(f"{server.url}/metrics", timeout=240).text.splitlines()
    return int(sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name)))


def test_five_hundred_disconnects_at_random_bytes(server: ServerProcess) -> None:
    async def leave() -> None:
        rng = random.Random(1)
        async with watched(server):
            for _ in range(10):
                lengths = [rng.randrange(6000) for _ in range(50)]
                await asyncio.gather(
                    *(read_some_and_leave(server.url, body(n, 60), length) for n, length in enumerate(lengths))
                )

    expected = asyncio.run(together(server.url, 4))
    before = assert_nothing_lost(server)
    asyncio.run(leave())
    after = assert_nothing_lost(server)
    ended = {name: after[name] - before[name] for name in ("accepted", "finished", "aborted", "failed")}
    assert ended["aborted"] > 100 and ended["failed"] == 0  # some had all they wanted, some left before they were read
    assert ended["accepted"] <= 500
    assert asyncio.run(together(server.url, 4)) == expected


def test_readers_that_stop_reading_hold_up_nobody(server: ServerProcess) -> None:
    async def stall() -> list[tuple[int, str, bool]]:
        sleepers = []
        async with watched(server):
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
    """Every second token is forbidden to it: it can only fail, in the middle of a batch."""

    async def among_others(doomed: dict[str, Any]) -> tuple[list[tuple[int, str, bool]], httpx.Response]:
        async with watched(server), httpx.AsyncClient(base_url=server.url, trust_env=False, timeout=240) as client:
            others = asyncio.ensure_future(together(server.url, 8))
            await asyncio.sleep(0.1)
            answer = await client.post("/v1/completions", json=doomed)
            return await others, answer

    expected = asyncio.run(together(server.url, 8))
    before = assert_nothing_lost(server)
    with server.client() as client:
        word = client.post("/detokenize", json={"tokens": [9]}).json()["prompt"]
    doomed = {"prompt": [5, 6], "allowed_token_ids": [9], "bad_words": [word * 2], "max_tokens": 4}
    others, answer = asyncio.run(among_others(doomed))
    assert answer.status_code == 400 and "no token" in answer.json()["error"]["message"]
    assert others == expected
    after = assert_nothing_lost(server)
    assert (after["failed"], after["finished"]) == (before["failed"] + 1, before["finished"] + 8)


def test_health_stays_quick_under_load(server: ServerProcess) -> None:
    async def probe(client: httpx.AsyncClient, stop: asyncio.Event) -> list[int]:
        codes = []
        while not stop.is_set():
            codes.append((await client.get("/livez", timeout=240)).status_code)
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


def test_sigterm_drains(server: ServerProcess) -> None:
    """The last of this file, because it is the server's last."""
    before = assert_nothing_lost(server)

    async def under_load() -> list[tuple[int, str, bool]]:
        """The server answers scrapes until its last stream is over: then it is gone, and nothing is left to ask."""
        streams = asyncio.gather(*(stream_completion(server.url, body(n, 200)) for n in range(20)))
        async with httpx.AsyncClient(base_url=server.url, trust_env=False, timeout=240) as client:
            while read_counters((await client.get("/metrics")).text)["accepted"] < before["accepted"] + 20:
                await asyncio.sleep(0.05)
            server.signal(signal.SIGTERM)
            while not streams.done():
                with contextlib.suppress(httpx.TransportError):
                    now = read_counters((await client.get("/metrics")).text)
                    assert now["accepted"] == before["accepted"] + 20
                    assert (now["failed"], now["aborted"]) == (before["failed"], before["aborted"])
                await asyncio.sleep(0.05)
        return list(await streams)

    answers = asyncio.run(under_load())
    assert all(status == 200 and done and text for status, text, done in answers)
    assert server.wait() == 0

"""Many at once: every one of a thousand streams gets what it would have got alone, and who finds no room is told."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from cadence import LLM, SamplingParams
from tests.helpers.leftovers import abandoned_files, shared_files, still_running
from tests.server.helpers import ServerProcess
from tests.server.ledger import assert_nothing_lost, watched
from tests.server.streams import stream_completion
from tests.server.test_faults import FLAGS, engine_of

pytestmark = pytest.mark.warm

COUNT = 1000
KINDS = 40  # different requests, each of which is asked COUNT / KINDS times
TOKENS = 6


@pytest.fixture(scope="module")
def server(tiny_model: Callable[[str], Path]) -> Iterator[ServerProcess]:
    with ServerProcess(tiny_model("llama"), *FLAGS, "--max-queued-requests", str(COUNT - 64)) as running:
        yield running


def body(kind: int) -> dict[str, Any]:
    """Prompts of many lengths; half are greedy, half have a seed."""
    prompt = [5 + (kind * 7 + position * 13) % 200 for position in range(1 + kind % 9 * 3)]
    temperature = 0.8 if kind % 2 else 0
    return {"prompt": prompt, "max_tokens": TOKENS, "temperature": temperature, "seed": kind, "ignore_eos": True}


async def together(server: ServerProcess, bodies: list[dict[str, Any]]) -> list[tuple[int, str, bool]]:
    async with watched(server):
        return list(await asyncio.gather(*(stream_completion(server.url, one) for one in bodies)))


def test_a_thousand_streams_at_once(server: ServerProcess, tiny_model: Callable[[str], Path]) -> None:
    """Neighbours differ, and so does whom a request is batched with each time it is asked."""
    kinds = [(n * 7 + n // KINDS) % KINDS for n in range(COUNT)]
    answers = asyncio.run(together(server, [body(kind) for kind in kinds]))
    assert_nothing_lost(server)
    offline = LLM(str(tiny_model("llama")), dtype="float32", max_model_len=512, enable_prefix_caching=False)
    alone = [_alone(offline, body(kind)) for kind in range(KINDS)]
    assert len(set(alone)) > KINDS // 2  # they would not pass for one another
    assert answers == [(200, alone[kind], True) for kind in kinds]


def test_an_overfull_server_says_so_and_lives(server: ServerProcess) -> None:
    """Room is counted in completions: a hundred requests for ten each fill it, and only those after them are told."""

    async def crowd(count: int) -> list[tuple[int, str, bool]]:
        long = {**body(1), "n": 10, "max_tokens": 400}
        async with watched(server):
            asked = [asyncio.ensure_future(stream_completion(server.url, long)) for _ in range(count)]
            while sum(one.done() for one in asked) < 20:
                await asyncio.sleep(0.02)
            with server.client() as client:
                assert client.get("/livez").status_code == 200
            answered = [one.result() for one in asked if one.done()]
            for one in asked:
                one.cancel()
            await asyncio.gather(*asked, return_exceptions=True)
        return answered

    before = assert_nothing_lost(server)
    answers = asyncio.run(crowd(COUNT // 10 + 20))
    assert [status for status, _, _ in answers] == [429] * 20
    after = assert_nothing_lost(server)
    assert (after["refused"] - before["refused"], after["aborted"] - before["aborted"]) == (20, 100)


def test_the_engine_does_not_outlive_a_killed_server(server: ServerProcess) -> None:
    """The last of this file, because it is the server's last."""
    shared = shared_files()
    engine = psutil.Process(engine_of(server))
    server.signal(signal.SIGKILL)
    server.wait()
    assert not still_running([engine], within_s=120) and not abandoned_files(shared)


def _alone(llm: LLM, request: dict[str, Any]) -> str:
    params = SamplingParams(
        temperature=request["temperature"], seed=request["seed"], max_tokens=TOKENS, ignore_eos=True
    )
    return llm.generate({"prompt_token_ids": request["prompt"]}, params, use_tqdm=False)[0].outputs[0].text

"""What a server says of its requests and KV blocks: sampled while it suffers, and settled afterwards."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from typing import Any

import httpx

from tests.server.helpers import ServerProcess

PREFIX = "cadence:http_requests_"
PERIOD_S = 0.1
SETTLE_S = 240.0


def read_counters(text: str) -> dict[str, float]:
    """The admission counters of a scrape, by the last word of their names; they balance in every one."""
    found = {}
    for line in text.splitlines():
        if line.startswith(PREFIX):
            name, value = line.rsplit(" ", 1)
            found[name.split("{")[0].removeprefix(PREFIX).removesuffix("_total")] = float(value)
    ended = found["finished"] + found["failed"] + found["aborted"]
    assert found["accepted"] == ended + found["in_flight"] and found["in_flight"] >= 0, found
    return found


@contextlib.asynccontextmanager
async def watched(server: ServerProcess) -> AsyncIterator[list[dict[str, float]]]:
    """Scrapes all the while, each of which must balance; gives the list they go to."""
    samples: list[dict[str, float]] = []

    async def watch() -> None:
        async with httpx.AsyncClient(base_url=server.url, trust_env=False, timeout=240) as client:
            while True:
                samples.append(read_counters((await client.get("/metrics")).text))
                await asyncio.sleep(PERIOD_S)

    watcher = asyncio.ensure_future(watch())
    try:
        yield samples
    finally:
        watcher.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watcher
    assert any(sample["in_flight"] for sample in samples), "nothing was seen to happen"


def assert_nothing_lost(server: ServerProcess) -> dict[str, float]:
    """Once all is quiet nothing is in flight and every KV block is free, or cached and free to be taken."""
    deadline = time.monotonic() + SETTLE_S
    with server.client() as client:
        while True:
            now = read_counters(client.get("/metrics").text)
            reply = client.get("/engine/state")
            if reply.status_code == 200 and not now["in_flight"] and _is_empty(reply.json()):
                return now
            assert time.monotonic() < deadline, (now, reply.text[:1000])
            time.sleep(0.02)


def _is_empty(state: dict[str, Any]) -> bool:
    blocks = state["blocks"]
    idle = not (state["running"] or state["waiting"])
    return idle and blocks["held"] == 0 and blocks["free"] + blocks["cached"] == blocks["count"] > 0

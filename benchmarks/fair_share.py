"""How long a tenant waits for its first tokens while another has a thousand long prompts under way.

    python -m benchmarks.fair_share [--model smollm2] [--questions 12] [--prompts 1000] [--policy fair] [--out FILE]

One server, one run: first the questions alone, then the same beside the other tenant's prompts, which are given up when
the last question is answered. Prints one JSON line.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.machine import describe_machine
from cadence.entrypoints.cli.remote.client import Remote
from tests.server.helpers import ServerProcess

KEYS = {"greedy": "sk-greedy", "modest": "sk-modest"}


def content(number: int, words: int, tokens: int) -> bytes:
    """A prompt that shares its beginning with no other."""
    prompt = f"{number} " + "the quick brown fox jumps over the lazy dog " * (words // 9)
    return json.dumps({"prompt": prompt, "max_tokens": tokens, "stream": True, "temperature": 0}).encode()


async def first_token_s(remote: Remote, body: bytes) -> float:
    """The whole answer is read."""
    start, seen = time.perf_counter(), list[float]()

    def on_event(event: dict[str, Any], now: float) -> None:
        if event.get("choices") and not seen:
            seen.append(time.perf_counter() - start)

    await remote.stream("/v1/completions", body, on_event)
    return seen[0]


async def questions(url: str, first: int, asked: argparse.Namespace) -> list[float]:
    waits = []
    async with Remote.at(url, KEYS["modest"]) as remote:
        for number in range(asked.questions):
            waits.append(await first_token_s(remote, content(first + number, asked.words, 8)))
            await asyncio.sleep(0.2)
    return waits


async def flood(url: str, asked: argparse.Namespace) -> list[asyncio.Task[float]]:
    async def one(number: int) -> float:
        async with Remote.at(url, KEYS["greedy"]) as remote:
            return await first_token_s(remote, content(number, 5 * asked.words, 64))

    return [asyncio.create_task(one(10_000 + number)) for number in range(asked.prompts)]


async def until_waiting(url: str, least: int) -> None:
    """Prompts are tokenised as they come: until so many are in the engine's queue."""
    async with Remote.at(url, KEYS["modest"]) as remote:
        while True:
            lines = (await remote.text("/metrics")).splitlines()
            if sum(float(line.split()[-1]) for line in lines if line.startswith("vllm:num_requests_waiting{")) >= least:
                return
            await asyncio.sleep(0.5)


async def compare(url: str, asked: argparse.Namespace) -> dict[str, Any]:
    await questions(url, 0, asked)  # warm
    alone = await questions(url, 1000, asked)
    crowd = await flood(url, asked)
    await until_waiting(url, asked.prompts // 2)
    beside = await questions(url, 2000, asked)
    answered = sum(task.done() for task in crowd)
    for task in crowd:
        task.cancel()
    await asyncio.gather(*crowd, return_exceptions=True)
    medians = {"alone_s": statistics.median(alone), "beside_s": statistics.median(beside)}
    longest = {"longest_alone_s": max(alone), "longest_beside_s": max(beside)}
    return medians | longest | {"ratio": medians["beside_s"] / medians["alone_s"], "prompts_answered": answered}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--questions", type=int, default=12)
    parser.add_argument("--prompts", type=int, default=1000)
    parser.add_argument(
        "--words", type=int, default=200, help="of a question; a prompt of the other has five times more"
    )
    parser.add_argument("--policy", default="fair", choices=("fair", "fcfs"))
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "tenants.json"
        tenants = [{"name": name, "api_keys": [key]} for name, key in KEYS.items()]
        config.write_text(json.dumps({"tenants": tenants}))
        flags = ["--tenant-config", str(config), "--scheduling-policy", asked.policy, "--max-model-len", "4096"]
        flags += ["--max-queued-requests", "4000", "--max-queued-tokens", "10000000", "--max-connections", "4000"]
        with ServerProcess(asked.model, *flags) as server:
            found = asyncio.run(compare(server.wait_ready(600).url, asked))
    line = {
        "policy": asked.policy,
        "model": asked.model,
        "prompts": asked.prompts,
        **found,
        "machine": describe_machine(),
    }
    print(json.dumps(line))
    if asked.out:
        with asked.out.open("a") as file:
            file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()

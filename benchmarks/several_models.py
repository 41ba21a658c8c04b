"""Two models in turn with memory for one: every request makes the other model leave.

    python -m benchmarks.several_models MODEL OTHER [--requests 100] [--memory 2G] [--out FILE] [-- FLAGS OF THE SERVER]

First each model is served alone, and says what it says; then one server with both is asked in turn. Prints one JSON
line: whether all texts were the same, what a load took, and the server's own memory and descriptors on the way, which
grow where a model that left is not let go.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import psutil

from benchmarks.machine import describe_machine
from tests.server.helpers import ServerProcess

PROMPTS = ("to be or not to be", "the slow river runs to the sea", "one two three", "why is the sky blue")
TOKENS = 16


def ask(client: httpx.Client, model: str, prompt: str) -> str:
    body = {"model": model, "prompt": prompt, "max_tokens": TOKENS, "temperature": 0, "ignore_eos": True}
    answer = client.post("/v1/completions", json=body)
    answer.raise_for_status()
    return str(answer.json()["choices"][0]["text"])


def alone(model: str, name: str, flags: list[str]) -> dict[tuple[str, str], str]:
    with ServerProcess(model, "--served-model-name", name, *flags) as server, server.client() as client:
        return {(name, prompt): ask(client, name, prompt) for prompt in PROMPTS}


def seen(server: ServerProcess) -> dict[str, int]:
    """Of the server's process, and how many it has started."""
    process = psutil.Process(server.process.pid)
    children = process.children(recursive=True)
    with process.oneshot():
        resident, threads = process.memory_info().rss, process.num_threads()
        return {"resident": resident, "fds": process.num_fds(), "threads": threads, "children": len(children)}


def in_turn(asked: argparse.Namespace, flags: list[str], expected: dict[tuple[str, str], str]) -> dict[str, Any]:
    words = (f"--models=a={asked.models[0]}", f"--models=b={asked.models[1]}", "--models-memory", asked.memory)
    waits, samples, wrong = [], [], 0
    with ServerProcess(*words, *flags) as server, server.client() as client:
        for number in range(asked.requests):
            name, prompt = "ab"[number % 2], PROMPTS[number // 2 % len(PROMPTS)]
            began = time.perf_counter()
            wrong += ask(client, name, prompt) != expected[name, prompt]
            waits.append(time.perf_counter() - began)
            if number % 10 == 9:
                samples.append(seen(server))
        cards = {card["id"]: card for card in client.get("/v1/models").json()["data"]}
    return {
        "wrong": wrong,
        "loads": {name: card["loads"]["count"] for name, card in cards.items()},
        "median_s": round(statistics.median(waits), 3),
        "longest_s": round(max(waits), 3),
        "samples": samples,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs=2)
    parser.add_argument("--requests", type=int, default=100)
    parser.add_argument("--memory", default="2G")
    parser.add_argument("--out", type=Path)
    at = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    asked, flags = parser.parse_args(sys.argv[1:at]), sys.argv[at + 1 :]
    expected = alone(asked.models[0], "a", flags) | alone(asked.models[1], "b", flags)
    found = {"machine": describe_machine(), "requests": asked.requests, **in_turn(asked, flags, expected)}
    line = json.dumps(found)
    print(line)
    if asked.out:
        asked.out.write_text(line + "\n")


if __name__ == "__main__":
    main()

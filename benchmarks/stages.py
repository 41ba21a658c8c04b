"""Pipeline stages beside one process with as many threads, in one run, in turn.

    python -m benchmarks.stages [--model smollm2] [--batches 1 32] [--tokens 64] [--rounds 3] [--output results.json]

Engines are opened and measured one after another: `one` = one process, two threads; `depth 1` and `depth 3` =
two stages of one thread each, with one step in flight and with three. Figures are medians over rounds; ratios are of
figures of one round. `busy` is the share of the time that each rank computed.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from pathlib import Path
from typing import Any

from cadence import LLM, SamplingParams

WAYS: dict[str, dict[str, Any]] = {
    "one": {},
    "depth 1": {"pipeline_parallel_size": 2, "async_scheduling": False},
    "depth 3": {"pipeline_parallel_size": 2},
}


def busy(llm: LLM) -> list[float]:
    return [metric.value for metric in llm.get_metrics() if metric.name == "cadence:rank_busy_seconds"]


def measured(llm: LLM, batch: int, tokens: int) -> dict[str, Any]:
    """Tokens per second of so many greedy requests at once."""
    prompts = [[7 + number, *range(100, 131)] for number in range(batch)]
    params = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)
    llm.generate(prompts, SamplingParams(temperature=0, max_tokens=4, ignore_eos=True), use_tqdm=False)
    before, began = busy(llm), time.perf_counter()
    llm.generate(prompts, params, use_tqdm=False)
    seconds = time.perf_counter() - began
    shares = [round((after - at) / seconds, 3) for after, at in zip(busy(llm), before, strict=True)]
    return {"tokens_per_s": batch * tokens / seconds, "busy": shares}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 32])
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--output", type=Path)
    asked = parser.parse_args()
    rounds: list[dict[str, dict[int, dict[str, Any]]]] = []
    for _ in range(asked.rounds):
        found: dict[str, dict[int, dict[str, Any]]] = {}
        for way, options in WAYS.items():
            llm = LLM(asked.model, max_model_len=1024, dtype=asked.dtype, enable_prefix_caching=False, **options)
            found[way] = {batch: measured(llm, batch, asked.tokens) for batch in asked.batches}
            del llm
        rounds.append(found)
    lines = [summary(rounds, batch) for batch in asked.batches]
    result = {"machine": platform.machine(), "model": asked.model, "dtype": asked.dtype, "lines": lines}
    print(json.dumps(result, indent=1))
    if asked.output:
        asked.output.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def summary(rounds: list[dict[str, dict[int, dict[str, Any]]]], batch: int) -> dict[str, Any]:
    def ratio(over: str, under: str) -> float:
        pairs = [found[over][batch]["tokens_per_s"] / found[under][batch]["tokens_per_s"] for found in rounds]
        return round(statistics.median(pairs), 3)

    speeds = {way: round(statistics.median(found[way][batch]["tokens_per_s"] for found in rounds), 1) for way in WAYS}
    return {
        "batch": batch,
        "tokens_per_s": speeds,
        "depth 3 / depth 1": ratio("depth 3", "depth 1"),
        "depth 3 / one": ratio("depth 3", "one"),
        "busy": {way: rounds[-1][way][batch]["busy"] for way in WAYS},
    }


if __name__ == "__main__":
    main()

"""Llama through transformers' code beside our own: decode at batch 1 and 32, and prefill. One JSON line per case.

    python -m benchmarks.transformers_route [--shapes smollm2-135m,llama-3.2-1b] [--batches 1,32] [--rounds 5]
                                            [--options JSON] [--profile FILE]

Dummy weights, greedy, no stop, no prefix cache. Two engines in one process take turns, round by round; the figure of
each is its best round, and `share` is what the route through transformers has of the other's rate. --profile: one more
round of decode through transformers under cProfile, whose figures go into a file.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import pstats
import random
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.machine import describe_machine
from benchmarks.shapes import SHAPES, write_shape
from cadence import LLM, SamplingParams

CODES = ("cadence", "transformers")
PROMPT, STEPS = 32, 48  # tokens of each request of a decode case, and tokens that it decodes
PREFILL = (4, 512)  # prompts, tokens of each


def opened(folder: Path, code: str, options: dict[str, Any]) -> LLM:
    common = {
        "load_format": "dummy", "skip_tokenizer_init": True, "enable_prefix_caching": False, "max_model_len": 1024,
    }  # fmt: skip
    return LLM(str(folder), model_impl=code, **common | options)


def seconds(llm: LLM, count: int, prompt: int, out: int, vocab_size: int) -> float:
    draw = random.Random(1)
    prompts = [[draw.randrange(vocab_size) for _ in range(prompt)] for _ in range(count)]
    start = time.perf_counter()
    llm.generate(prompts, SamplingParams(temperature=0, max_tokens=out, ignore_eos=True), use_tqdm=False)
    return time.perf_counter() - start


def decode_rate(llm: LLM, batch: int, vocab_size: int) -> float:
    """Tokens per second, without the prompts."""
    first = seconds(llm, batch, PROMPT, 1, vocab_size)
    return batch * STEPS / (seconds(llm, batch, PROMPT, 1 + STEPS, vocab_size) - first)


def prefill_rate(llm: LLM, vocab_size: int) -> float:
    count, length = PREFILL
    return count * length / seconds(llm, count, length, 1, vocab_size)


def compare(shape: str, batches: list[int], rounds: int, options: dict[str, Any], profile: str) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        folder = write_shape(shape, Path(scratch))
        vocab_size = SHAPES[shape]["vocab_size"]
        engines = {code: opened(folder, code, options) for code in CODES}
        cases = {f"decode, batch {batch}": batch for batch in batches} | {"prefill": 0}
        best = {(case, code): 0.0 for case in cases for code in CODES}
        for turn in range(rounds + 1):
            for case, batch in cases.items():
                for code, llm in engines.items():
                    rate = decode_rate(llm, batch, vocab_size) if batch else prefill_rate(llm, vocab_size)
                    if turn:  # the first is for warming up
                        best[case, code] = max(best[case, code], rate)
        for case in cases:
            ours, theirs = (best[case, code] for code in CODES)
            line = {"shape": shape, "case": case, "ours": round(ours, 1), "through": round(theirs, 1)}
            print(json.dumps(line | {"share": round(theirs / ours, 3)}), flush=True)
        if profile:
            profiled(engines["transformers"], batches[0], vocab_size, profile)


def profiled(llm: LLM, batch: int, vocab_size: int, to: str) -> None:
    profiler = cProfile.Profile()
    profiler.enable()
    decode_rate(llm, batch, vocab_size)
    profiler.disable()
    with open(to, "w", encoding="utf-8") as file:
        pstats.Stats(profiler, stream=file).sort_stats("tottime").print_stats(45)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--shapes", default="smollm2-135m")
    parser.add_argument("--batches", default="1,32")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--options", type=json.loads, default={})
    parser.add_argument("--profile", default="")
    flags = parser.parse_args()
    print(json.dumps({"machine": describe_machine(), "options": flags.options}), flush=True)
    for shape in flags.shapes.split(","):
        compare(shape, [int(batch) for batch in flags.batches.split(",")], flags.rounds, flags.options, flags.profile)


if __name__ == "__main__":
    main()

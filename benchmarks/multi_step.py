"""Automatic bursts against one forward per plan, in turns in one process. One JSON line per case.

    python -m benchmarks.multi_step [--model smollm2] [--rounds 5]
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from typing import Any

from benchmarks.machine import describe_machine
from cadence import LLM, SamplingParams

CASES = {"one stream, 32 in, 128 out": (1, 32, 128), "32 x 32 in, 64 out": (32, 32, 64)}
ENGINES: dict[str, dict[str, Any]] = {
    "automatic": {},
    "one forward per plan": {"num_scheduler_steps": 1},
    "one forward per plan, launched op by op": {"num_scheduler_steps": 1, "enforce_eager": True},
}


def seconds(llm: LLM, batch: int, prompt: int, out: int, seed: int) -> float:
    prompts = [[(37 * (seed + row) + 11 * place) % 40000 + 100 for place in range(prompt)] for row in range(batch)]
    params = SamplingParams(temperature=0, max_tokens=out, ignore_eos=True)
    start = time.perf_counter()
    llm.generate(prompts, params, use_tqdm=False)
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    print(json.dumps({"machine": describe_machine(), "model": args.model}), flush=True)
    engines = {name: LLM(args.model, max_model_len=1024, **options) for name, options in ENGINES.items()}
    for case, work in CASES.items():
        taken: dict[str, list[float]] = {name: [] for name in engines}
        for number in range(args.rounds + 1):  # the first is a warm-up
            for name, llm in engines.items():
                taken[name].append(seconds(llm, *work, seed=1000 * number))
        rates = {name: work[0] * work[2] / statistics.median(times[1:]) for name, times in taken.items()}
        plain = rates["one forward per plan"]
        ratios = {name: round(rate / plain, 3) for name, rate in rates.items()}
        rounded = {name: round(rate, 1) for name, rate in rates.items()}
        print(json.dumps({"case": case, "tokens_per_second": rounded, "against_one_forward": ratios}), flush=True)


if __name__ == "__main__":
    main()

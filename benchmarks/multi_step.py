"""Automatic bursts against one forward per plan, in turns in one process. One JSON line per case.

python -m benchmarks.multi_step [--model smollm2] [--rounds 5] [--options '{"quantization": "gguf"}'] [--cases 1,32]
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from typing import Any

from benchmarks.machine import describe_machine
from cadence import LLM, SamplingParams

CASES = {1: (1, 32, 128), 32: (32, 32, 64)}  # by batch: requests, prompt tokens, output tokens
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
    parser.add_argument("--options", type=json.loads, default={}, help="engine options as JSON")
    parser.add_argument("--cases", default="1,32", help="batch sizes")
    args = parser.parse_args()
    print(json.dumps({"machine": describe_machine(), "model": args.model, "options": args.options}), flush=True)
    engines = {name: LLM(args.model, max_model_len=1024, **args.options, **own) for name, own in ENGINES.items()}
    for work in (CASES[int(batch)] for batch in args.cases.split(",")):
        case = f"{work[0]} x {work[1]} in, {work[2]} out"
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

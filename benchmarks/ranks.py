"""Ranks that share each layer against one rank with as many threads, in turns in one run. One JSON line per case.

python -m benchmarks.ranks [--model smollm2] [--rounds 5] [--cases 1,32] [--quantization gguf,none] [--ranks 2]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
from typing import Any

from benchmarks.machine import describe_machine
from benchmarks.multi_step import CASES, seconds
from cadence import LLM


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cases", default="1,32", help="batch sizes")
    parser.add_argument("--quantization", default="gguf,none", help="gguf: as the file has it; none: bfloat16")
    parser.add_argument("--ranks", type=int, default=2)
    args = parser.parse_args()
    print(json.dumps({"machine": describe_machine(), "model": args.model}), flush=True)
    for quantization in args.quantization.split(","):
        measure(args, {"quantization": quantization, "dtype": "bfloat16"})


def measure(args: argparse.Namespace, options: dict[str, Any]) -> None:
    engines = {
        "one rank": LLM(args.model, max_model_len=1024, cpu_threads=args.ranks, **options),
        "ranks": LLM(args.model, max_model_len=1024, tensor_parallel_size=args.ranks, **options),
    }
    for work in (CASES[int(batch)] for batch in args.cases.split(",")):
        taken: dict[str, list[float]] = {name: [] for name in engines}
        for number in range(args.rounds + 1):  # the first is a warm-up
            for name, llm in engines.items():
                taken[name].append(seconds(llm, *work, seed=1000 * number))
        pairs = zip(taken["one rank"][1:], taken["ranks"][1:], strict=True)
        ratios = sorted(one / several for one, several in pairs)
        rates = {name: round(work[0] * work[2] / statistics.median(times[1:]), 1) for name, times in taken.items()}
        fastest = min(taken["one rank"][1:]) / min(taken["ranks"][1:])  # what a busy machine disturbs least
        found = {
            "case": f"{options['quantization']}, {work[0]} x {work[1]} in, {work[2]} out",
            "tokens_per_second": rates,
            "ranks_against_one": {"median": round(statistics.median(ratios), 3), "fastest": round(fastest, 3)},
            "each": [round(ratio, 3) for ratio in ratios],
            "load": round(os.getloadavg()[0], 1),
        }
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()

"""An engine on a GPU put to sleep and woken, with dummy weights: what memory it gives back, and how long both take.

    python -m benchmarks.gpu_sleep [--shape llama-3.1-8b] [--levels 1,2] [--rounds 2] [--options JSON]

One JSON line per sleep. Memory of the GPU is what its driver says of it to others (nvidia-smi where it is there):
before the engine, with it awake, asleep, and awake again. `given_back` is the share of what the engine had taken.
Tokens before and after are compared: greedy, of short and long prompts, by graphs captured before the sleep.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import subprocess
import time
from typing import Any

import torch

from benchmarks.gpu import open_shape
from benchmarks.machine import describe_machine
from benchmarks.shapes import SHAPES
from cadence import LLM, SamplingParams

LENGTHS = (5, 128, 700, 2048)  # tokens of prompts
OUT = 64


def used_bytes() -> int:
    """Of the GPU, by all processes."""
    if shutil.which("nvidia-smi"):
        query = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits", "--id=0"]
        return int(subprocess.run(query, capture_output=True, text=True, check=True).stdout.split()[0]) << 20
    free, total = torch.cuda.mem_get_info()
    return total - free


def tokens(llm: LLM, shape: str) -> list[list[int]]:
    draw = random.Random(0)
    prompts = [[draw.randrange(100, SHAPES[shape]["vocab_size"]) for _ in range(length)] for length in LENGTHS]
    params = SamplingParams(temperature=0, max_tokens=OUT, ignore_eos=True, detokenize=False)
    found = llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], params, use_tqdm=False)
    return [list(output.outputs[0].token_ids) for output in found]


def timed(work: Any) -> float:
    start = time.perf_counter()
    work()
    return round(time.perf_counter() - start, 3)


def measure(llm: LLM, shape: str, level: int, empty: int) -> dict[str, Any]:
    wanted, awake = tokens(llm, shape), used_bytes()
    slept = timed(lambda: llm.sleep(level))
    asleep = used_bytes()
    woken = timed(llm.wake_up)
    first = timed(lambda: tokens(llm, shape))
    return {
        "shape": shape,
        "level": level,
        "awake_gib": round(awake / 2**30, 2),
        "asleep_gib": round(asleep / 2**30, 2),
        "awake_again_gib": round(used_bytes() / 2**30, 2),
        "empty_gib": round(empty / 2**30, 2),
        "given_back": round((awake - asleep) / (awake - empty), 4),
        "sleep_s": slept,
        "wake_s": woken,
        "first_answers_s": first,
        "same_tokens": tokens(llm, shape) == wanted,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="llama-3.1-8b")
    parser.add_argument("--levels", default="1,2")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--options", type=json.loads, default={}, help="engine options as JSON")
    args = parser.parse_args()
    torch.cuda.init()
    empty = used_bytes()
    print(json.dumps({"machine": describe_machine(), "options": args.options}), flush=True)
    llm, started = open_shape(args.shape, {"dtype": "bfloat16", "enable_sleep_mode": True} | args.options)
    print(json.dumps({"shape": args.shape, "start_s": round(started, 1)}), flush=True)
    tokens(llm, args.shape)  # compiles and captures
    with llm:
        for _ in range(args.rounds):
            for level in map(int, args.levels.split(",")):
                print(json.dumps(measure(llm, args.shape, level, empty)), flush=True)


if __name__ == "__main__":
    main()

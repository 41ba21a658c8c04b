"""A smaller model that drafts for a larger one, on code, beside llama.cpp with the same pair of files.

    python -m benchmarks.draft_model --target LARGE.gguf --draft SMALL.gguf [--drafts 3] [--out 96]

One stream, greedy. Engines run one after another, prompts in turn; rates are without prompts. One JSON line each, and
the ratios at the end. llama.cpp: `python -m benchmarks.peers.install llama.cpp`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import time
from pathlib import Path
from statistics import mean
from typing import Any

import torch

from benchmarks.machine import describe_machine
from benchmarks.peers.install import is_installed, python_of
from cadence import LLM, SamplingParams

PROMPTS = (
    "Write a Python class for a binary search tree with insert, delete and in-order traversal.",
    "Write a Python function that parses a CSV file into a list of dictionaries, with tests.",
    "Implement quicksort in Python with comments.",
)
PEER = Path(__file__).parent / "peers" / "pair_llama_cpp.py"


def rate(llm: LLM, prompt: list[int], out: int) -> tuple[float, Any]:
    """Tokens a second after the first, with the prompt in the cache."""

    def timed(count: int) -> tuple[float, Any]:
        params = SamplingParams(temperature=0, max_tokens=count, ignore_eos=True)
        start = time.perf_counter()
        output = llm.generate([prompt], params, use_tqdm=False)[0]
        return time.perf_counter() - start, output

    timed(1 + out // 4)
    first, _ = timed(1)
    whole, output = timed(1 + out)
    return out / (whole - first), output


def cadence_rates(asked: argparse.Namespace) -> tuple[list[list[int]], dict[str, list[float]]]:
    """(tokens of the prompts, rates by engine)"""
    rates: dict[str, list[float]] = {}
    answers: dict[str, list[list[int]]] = {}
    prompts: list[list[int]] = []
    config = {"method": "draft_model", "model": asked.draft, "num_speculative_tokens": asked.drafts}
    for name, options in (("cadence", {}), ("cadence, drafts", {"speculative_config": config})):
        llm = LLM(asked.target, max_model_len=1024, **options)
        if not prompts:
            params = SamplingParams(temperature=0, max_tokens=1)
            chats = [[{"role": "user", "content": text}] for text in PROMPTS]
            prompts = [list(output.prompt_token_ids) for output in llm.chat(chats, params, use_tqdm=False)]
        for prompt in prompts:
            found, output = rate(llm, prompt, asked.out)
            rates.setdefault(name, []).append(found)
            answers.setdefault(name, []).append(list(output.outputs[0].token_ids))
            stats = output.speculation
            line = {"engine": name, "tokens_per_second": round(found, 2), "drafted": stats.num_drafted}
            print(json.dumps({**line, "accepted": stats.num_accepted}), flush=True)
        del llm
    assert answers["cadence"] == answers["cadence, drafts"], "other tokens"
    return prompts, rates


def peer_rates(asked: argparse.Namespace, prompts: list[list[int]]) -> dict[str, list[float]]:
    words = [str(python_of("llama.cpp")), str(PEER), asked.target, asked.draft, str(asked.drafts)]
    work = json.dumps({"prompts": prompts, "out": asked.out})
    command = [*words, str(torch.get_num_threads())]
    done = subprocess.run(command, input=work, capture_output=True, text=True, check=True)
    rates: dict[str, list[float]] = {}
    for line in done.stdout.splitlines():
        print(line, flush=True)
        found = json.loads(line)
        rates.setdefault(found["engine"], []).append(found["tokens_per_second"])
    return rates


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", required=True)
    parser.add_argument("--draft", required=True)
    parser.add_argument("--drafts", type=int, default=3)
    parser.add_argument("--out", type=int, default=96)
    asked = parser.parse_args()
    print(json.dumps({"machine": describe_machine(), "drafts": asked.drafts}), flush=True)
    prompts, rates = cadence_rates(asked)
    if is_installed("llama.cpp"):
        rates |= peer_rates(asked, prompts)
    line: dict[str, Any] = {name: round(mean(each), 2) for name, each in rates.items()}
    for name in ("cadence", "llama.cpp"):
        if name in rates:
            line[f"{name}: with drafts / without"] = round(mean(rates[f"{name}, drafts"]) / mean(rates[name]), 3)
    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()

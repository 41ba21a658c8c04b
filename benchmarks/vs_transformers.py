"""Cadence and transformers on the same CPU, the same SmolLM2 weights, the same type, turn by turn in one process.

    python -m benchmarks.vs_transformers [--out benchmarks/results/NAME.json]

Ratios are what counts: the two take turns, so a noisy machine disturbs both.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks.machine import describe_machine
from cadence import LLM, SamplingParams
from tests.helpers.smollm2 import hf_reference

Work = list[list[int]]  # prompts


class Transformers:
    def __init__(self, model: Any) -> None:
        self._model = model

    @torch.inference_mode()
    def batched(self, prompts: Work, out: int) -> None:
        ids = torch.tensor(prompts)
        result = self._model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=out,
            min_new_tokens=out,
            pad_token_id=2,
        )
        assert result.shape[1] == ids.shape[1] + out

    def sequential(self, prompts: Work, out: int) -> None:
        for prompt in prompts:
            self.batched([prompt], out)


class Cadence:
    def __init__(self, llm: LLM) -> None:
        self._llm = llm

    def run(self, prompts: Work, out: int) -> None:
        self._llm.reset_prefix_cache()
        params = SamplingParams(temperature=0, max_tokens=out, ignore_eos=True, detokenize=False)
        outputs = self._llm.generate(prompts, params, use_tqdm=False)
        assert all(len(output.outputs[0].token_ids) == out for output in outputs)


def prompts(count: int, length: int, seed: int) -> Work:
    rng = random.Random(seed)
    return [[rng.randrange(100, 48000) for _ in range(length)] for _ in range(count)]


def seconds(run: Callable[[Work, int], None], work: Work, out: int) -> float:
    start = time.perf_counter()
    run(work, out)
    return time.perf_counter() - start


def compare(case: str, runs: dict[str, Callable[[], float]], repeats: int) -> dict[str, Any]:
    """Each run returns output tokens per second. One round to warm up, then `repeats` rounds, all taking turns."""
    rates: dict[str, list[float]] = {name: [] for name in runs}
    for round_number in range(repeats + 1):
        for name, run in runs.items():
            rate = run()
            if round_number:
                rates[name].append(rate)
    medians = {name: round(statistics.median(values), 2) for name, values in rates.items()}
    peers = {name: value for name, value in medians.items() if name != "cadence"}
    ratios = {f"cadence / {name}": round(medians["cadence"] / value, 2) for name, value in peers.items()}
    return {"case": case, "output_tokens_per_second": medians, "ratios": ratios, "all": rates}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--repeats", type=int, default=2)
    args = parser.parse_args()

    peer = Transformers(hf_reference().to(getattr(torch, args.dtype)))
    ours = Cadence(LLM("smollm2", dtype=args.dtype, quantization="none", max_model_len=2048))
    one, many, few = prompts(1, 32, 1), prompts(32, 128, 2), prompts(2, 128, 3)
    cases = [
        compare(
            "one stream, 32 in, 128 out",
            {
                "transformers": lambda: 128 / seconds(peer.batched, one, 128),
                "cadence": lambda: 128 / seconds(ours.run, one, 128),
            },
            args.repeats,
        ),
        compare(
            "32 requests, 128 in, 128 out (transformers one by one: rate over 2 of them)",
            {
                "transformers batched": lambda: 32 * 128 / seconds(peer.batched, many, 128),
                "transformers one by one": lambda: 2 * 128 / seconds(peer.sequential, few, 128),
                "cadence": lambda: 32 * 128 / seconds(ours.run, many, 128),
            },
            args.repeats,
        ),
    ]
    report = json.dumps({"machine": describe_machine(), "dtype": args.dtype, "cases": cases}, indent=2)
    print(report)
    if args.out:
        args.out.write_text(report + "\n")


if __name__ == "__main__":
    main()

"""A trained head on prompts it was not trained on, beside the same engine without drafts.

    python -m benchmarks.held_out [--prompts 16] [--out 256]

One stream, both engines in turn, greedy and at temperature 1: one JSON line each, with the ratio of all time spent.
"""

from __future__ import annotations

import argparse
import json
import time

from benchmarks.machine import describe_machine
from cadence import LLM, RequestOutput, SamplingParams
from training.prompts import prompts

COMMON = {"max_model_len": 2048, "max_num_seqs": 16, "max_num_batched_tokens": 2048}


def timed(llm: LLM, turns: tuple[str, ...], params: SamplingParams) -> tuple[float, RequestOutput]:
    messages = [{"role": ("user", "assistant")[place % 2], "content": text} for place, text in enumerate(turns)]
    start = time.perf_counter()
    (output,) = llm.chat([messages], params, use_tqdm=False)
    return time.perf_counter() - start, output


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=16)
    parser.add_argument("--out", type=int, default=256)
    asked = parser.parse_args()
    print(json.dumps({"machine": describe_machine(), **vars(asked)}))
    plain = LLM("smollm2", gpu_memory_utilization=0.2, **COMMON)
    drafting = LLM("smollm2", gpu_memory_utilization=0.5, speculative_config={"method": "eagle3"}, **COMMON)
    held_out = prompts(asked.prompts, held_out=True)
    for temperature in (0.0, 1.0):
        params = SamplingParams(temperature=temperature, max_tokens=asked.out, seed=3)
        for turns in held_out[:4]:  # shapes are recorded, and the policy learns what forwards take
            timed(plain, turns, params), timed(drafting, turns, params)
        seconds, tokens, drafts, kept = [0.0, 0.0], 0, 0, 0
        for turns in held_out:
            without, output = timed(plain, turns, params)
            taken, drafted = timed(drafting, turns, params)
            seconds = [seconds[0] + without, seconds[1] + taken]
            tokens += len(output.outputs[0].token_ids)
            drafts += drafted.speculation.num_drafted
            kept += drafted.speculation.num_accepted
        figures = {"tokens_per_second": round(tokens / seconds[1], 1), "plain": round(tokens / seconds[0], 1)}
        ratio = {"speedup": round(seconds[0] / seconds[1], 3), "drafted": drafts, "kept": kept}
        print(json.dumps({"temperature": temperature, "tokens": tokens, **figures, **ratio}), flush=True)


if __name__ == "__main__":
    main()

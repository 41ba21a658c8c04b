"""Decode and prefill rates on a GPU with dummy weights, against the memory's limit. One JSON line per case.

    python -m benchmarks.gpu [--shapes llama-3.1-8b,qwen3-0.6b] [--profile FILE]
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.machine import describe_machine
from benchmarks.shapes import SHAPES, weight_bytes_per_token, write_shape
from cadence import LLM, SamplingParams


def read_bandwidth() -> float:
    """Bytes per second when reading a large buffer."""
    buffer = torch.empty(4 * 2**30, dtype=torch.int8, device="cuda").view(torch.float32)
    for _ in range(3):
        buffer.sum()
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    for _ in range(10):
        buffer.sum()
    end.record()
    torch.cuda.synchronize()
    return 10 * buffer.nbytes / (start.elapsed_time(end) / 1e3)


def prompts(count: int, length: int, vocab_size: int, seed: int) -> list[list[int]]:
    rng = random.Random(seed)
    return [[rng.randrange(100, vocab_size) for _ in range(length)] for _ in range(count)]


def timed(llm: LLM, work: list[list[int]], out: int) -> float:
    params = SamplingParams(temperature=0, max_tokens=out, ignore_eos=True, detokenize=False)
    start = time.perf_counter()
    outputs = llm.generate(work, params, use_tqdm=False)
    elapsed = time.perf_counter() - start
    assert all(len(output.outputs[0].token_ids) == out for output in outputs)
    return elapsed


def decode_case(llm: LLM, name: str, batch: int, bandwidth: float) -> dict[str, Any]:
    """Decode rate = extra tokens over extra time between a short and a long run, so that prefill cancels out."""
    vocab_size = SHAPES[name]["vocab_size"]
    timed(llm, prompts(batch, 128, vocab_size, 0), 8)
    short = timed(llm, prompts(batch, 128, vocab_size, 1), 8)
    whole = timed(llm, prompts(batch, 128, vocab_size, 2), 136)
    rate = batch * 128 / (whole - short)
    limit = batch * bandwidth / weight_bytes_per_token(name)
    return {
        "case": f"decode, batch {batch}, 128 in, 136 out",
        "decode_tokens_per_second": round(rate, 1),
        "weights_bandwidth_limit": round(limit, 1),
        "share_of_limit": round(rate / limit, 3),
        "output_tokens_per_second": round(batch * 136 / whole, 1),
    }


def prefill_case(llm: LLM, name: str) -> dict[str, Any]:
    vocab_size = SHAPES[name]["vocab_size"]
    timed(llm, prompts(8, 2048, vocab_size, 3), 1)
    elapsed = timed(llm, prompts(16, 2048, vocab_size, 4), 1)
    return {"case": "prefill, 16 x 2048", "prefill_tokens_per_second": round(16 * 2048 / elapsed)}


def profile(llm: LLM, name: str, path: Path) -> None:
    """Where the time of 16 decode steps goes, as a table."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as torch_profile

    with torch_profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as recorded:
        timed(llm, prompts(1, 128, SHAPES[name]["vocab_size"], 5), 16)
    path.write_text(recorded.key_averages().table(sort_by="self_cuda_time_total", row_limit=40))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shapes", default="llama-3.1-8b")
    parser.add_argument("--profile", type=Path)
    args = parser.parse_args()
    bandwidth = read_bandwidth()
    torch.cuda.empty_cache()
    print(json.dumps({"machine": describe_machine(), "read_bandwidth_tb_s": round(bandwidth / 1e12, 2)}), flush=True)
    for name in args.shapes.split(","):
        with tempfile.TemporaryDirectory() as directory:
            start = time.perf_counter()
            llm = LLM(
                str(write_shape(name, Path(directory))),
                load_format="dummy",
                skip_tokenizer_init=True,
                max_model_len=4096,
                enable_prefix_caching=False,
            )
            started = time.perf_counter() - start
        cases = [decode_case(llm, name, batch, bandwidth) for batch in (1, 64)] + [prefill_case(llm, name)]
        for case in cases:
            print(json.dumps({"shape": name, "engine_start_s": round(started, 1), **case}), flush=True)
        if args.profile:
            profile(llm, name, args.profile)
        del llm
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()

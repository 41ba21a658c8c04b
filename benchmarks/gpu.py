"""Decode, prefill and mixed work on a GPU with dummy weights, beside what the machine allows. One JSON line per case.

    python -m benchmarks.gpu [--shapes llama-3.1-8b,qwen3-0.6b,smollm2-135m] [--cases abcdef] [--options JSON]
                             [--profile FOLDER]

Cases: a = one stream, 128 in, 256 out (decode rate); b = 256 x 512 in, 256 out; c = 1,000 x 64..1,024 in, 64..512 out;
d = prefill of 16 x 2,048; e = 256 x 100..1,024 in and out; f = 64 x 128 in, 256 out; k = decode of 64 x 4,096, with the
KV cache in each type after the other, beside the model's own in one run (an engine each). Greedy, no stop, no prefix
cache; a warm-up of the same lengths, then the best of two.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.floor import Machine
from benchmarks.gpu_profile import profile_decode
from benchmarks.machine import describe_machine
from benchmarks.shapes import SHAPES, write_shape
from cadence import LLM, SamplingParams

Work = list[tuple[int, int]]  # (prompt tokens, output tokens) of each request
ROWS = 1024  # requests running at once, where there are so many: a GPU's default


def uniform(count: int, prompt: int, out: int) -> Work:
    return [(prompt, out)] * count


def mixed(count: int, prompt: tuple[int, int], out: tuple[int, int]) -> Work:
    draw = random.Random(0)
    return [(draw.randint(*prompt), draw.randint(*out)) for _ in range(count)]


CASES: dict[str, Work] = {
    "a": uniform(1, 128, 256),
    "b": uniform(256, 512, 256),
    "c": mixed(1000, (64, 1024), (64, 512)),
    "d": uniform(16, 2048, 1),
    "e": mixed(256, (100, 1024), (100, 1024)),
    "f": uniform(64, 128, 256),
}
KV_CASE = "k"
KV_TYPES = ("auto", "fp8_e4m3", "fp8_e5m2", "int8")
KV_ROWS, KV_LENGTH, KV_STEPS = 64, 4096, 128  # sequences, tokens of each halfway, tokens that each decodes
DEFAULT_CASES = {"llama-3.1-8b": "abcdf", "qwen3-0.6b": "abef", "smollm2-135m": "abef"}


def measured_machine() -> Machine:
    buffer = torch.empty(4 * 2**30, dtype=torch.int8, device="cuda").view(torch.float32)
    square = torch.randn(8192, 8192, dtype=torch.bfloat16, device="cuda")
    read = _seconds(buffer.sum)
    multiply = _seconds(lambda: square @ square)
    return Machine(buffer.nbytes / read, 2 * 8192**3 / multiply)


def _seconds(work: Any) -> float:
    for _ in range(3):
        work()
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    for _ in range(10):
        work()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) / 1e4


def run(llm: LLM, work: Work, vocab_size: int, seed: int) -> float:
    """Seconds for all of it."""
    draw = random.Random(seed)
    prompts = [[draw.randrange(100, vocab_size) for _ in range(length)] for length, _ in work]
    params = [SamplingParams(temperature=0, max_tokens=out, ignore_eos=True, detokenize=False) for _, out in work]
    start = time.perf_counter()
    outputs = llm.generate(prompts, params, use_tqdm=False)
    elapsed = time.perf_counter() - start
    for output, (_, out) in zip(outputs, work, strict=True):
        assert len(output.outputs[0].token_ids) == out
    return elapsed


def best(llm: LLM, work: Work, vocab_size: int) -> float:
    run(llm, work, vocab_size, 0)
    return min(run(llm, work, vocab_size, seed) for seed in (1, 2))


def measure(llm: LLM, shape: str, case: str, machine: Machine) -> dict[str, Any]:
    work, vocab_size = CASES[case], SHAPES[shape]["vocab_size"]
    whole = best(llm, work, vocab_size)
    if case == "a":  # the decode rate: the first token is taken off
        first = best(llm, [(length, 1) for length, _ in work], vocab_size)
        limit = 1 / machine.decode_seconds(shape, [128 + 128])
        return _line(shape, case, 255 / (whole - first), limit) | {"ttft_ms": round(first * 1e3, 1)}
    if case == "d":
        tokens = sum(length for length, _ in work)
        return _line(shape, case, tokens / whole, tokens / machine.prefill_seconds(shape, [n for n, _ in work]))
    tokens = sum(out for _, out in work)
    return _line(shape, case, tokens / whole, tokens / machine.request_seconds(shape, work, ROWS))


def measure_kv(shape: str, options: dict[str, Any]) -> None:
    """Decode rates: a run of one token each is taken off."""
    vocab_size, first_rate = SHAPES[shape]["vocab_size"], 0.0
    prompt = KV_LENGTH - KV_STEPS // 2
    for kind in KV_TYPES:
        room = {"max_model_len": KV_LENGTH + KV_STEPS, "max_num_seqs": KV_ROWS, "kv_cache_dtype": kind}
        llm, _ = open_shape(shape, room | options)
        run(llm, uniform(KV_ROWS, prompt, 8), vocab_size, 0)
        first, whole = (run(llm, uniform(KV_ROWS, prompt, out), vocab_size, 1) for out in (1, 1 + KV_STEPS))
        rate = KV_ROWS * KV_STEPS / (whole - first)
        first_rate = first_rate or rate
        figures = {"tokens_per_second": round(rate, 1), "step_ms": round(1e3 * KV_ROWS / rate, 3)}
        figures |= {
            "beside_auto": round(rate / first_rate, 3),
            "prefill_tokens_per_second": round(KV_ROWS * prompt / first),
        }
        figures |= {"blocks": llm.llm_engine.num_blocks}
        print(json.dumps({"shape": shape, "case": KV_CASE, "kv_cache_dtype": kind, **figures}), flush=True)
        del llm
        gc.collect()
        torch.cuda.empty_cache()


def _line(shape: str, case: str, rate: float, limit: float) -> dict[str, Any]:
    return {
        "shape": shape,
        "case": case,
        "tokens_per_second": round(rate, 1),
        "limit": round(limit, 1),  # all bytes read and all products done at the measured rates, nothing else
        "share_of_limit": round(rate / limit, 3),
    }


def open_shape(name: str, options: dict[str, Any]) -> tuple[LLM, float]:
    with tempfile.TemporaryDirectory() as directory:
        start = time.perf_counter()
        llm = LLM(
            str(write_shape(name, Path(directory))),
            **{
                "load_format": "dummy",
                "skip_tokenizer_init": True,
                "max_model_len": 4096,
                "max_num_seqs": ROWS,
                "enable_prefix_caching": False,
            }
            | options,
        )
        return llm, time.perf_counter() - start


def write_profiles(llm: LLM, shape: str, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for batch in (1, 64):
        found = profile_decode(lambda: run(llm, uniform(batch, 128, 64), SHAPES[shape]["vocab_size"], 3))  # noqa: B023
        (folder / f"{shape}-{batch}.txt").write_text(f"{found.table}\n{found.gaps}\n")
        figures = {"idle_share": round(found.idle_share, 4), "kernels_per_token": round(found.kernels / 64, 1)}
        print(json.dumps({"shape": shape, "case": f"profile of batch {batch}", **figures}), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", default=",".join(DEFAULT_CASES))
    parser.add_argument("--cases", default="", help="letters; default: those that say most about each shape")
    parser.add_argument("--options", type=json.loads, default={}, help="engine options as JSON")
    parser.add_argument("--profile", type=Path, help="folder for a table of kernels per shape, and the idle share")
    args = parser.parse_args()
    machine = measured_machine()
    gc.collect()
    torch.cuda.empty_cache()
    measured = {"read_tb_s": round(machine.bytes_per_second / 1e12, 2), "bf16_tflop_s": round(machine.flops / 1e12)}
    print(json.dumps({"machine": describe_machine(), **measured, "options": args.options}), flush=True)
    for name in args.shapes.split(","):
        if KV_CASE in args.cases:
            measure_kv(name, args.options)
        cases = (args.cases or DEFAULT_CASES[name]).replace(KV_CASE, "")
        if not cases:
            continue
        llm, started = open_shape(name, args.options)
        print(json.dumps({"shape": name, "case": "engine start", "seconds": round(started, 1)}), flush=True)
        for case in cases:
            print(json.dumps(measure(llm, name, case, machine)), flush=True)
        if args.profile:
            write_profiles(llm, name, args.profile)
        del llm
        gc.collect()
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()

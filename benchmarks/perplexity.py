"""What each way of holding a model's weights costs in quality: perplexity of a text, one JSON line per way.

    python -m benchmarks.perplexity [--model smollm2] [--windows N] [--ways "float32;gguf;..."] [--check] [--out FILE]

The text is read in windows of 2,048 tokens; every token but the first of a window counts. Logprobs come from the engine
itself (`prompt_logprobs`). `--check` also asks transformers about the first window. Each way runs in a process of its
own, which also says how much memory it holds beyond what importing torch takes.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.machine import describe_machine
from cadence.config.args import names

TEXT = Path(__file__).parent / "texts" / "the_ball_and_the_cross.txt"
WINDOW = 2048  # tokens
WAYS: dict[str, dict[str, Any]] = {
    "float32": {"quantization": "none", "dtype": "float32"},  # the file's weights, dequantised: what others compare to
    "bfloat16": {"quantization": "none", "dtype": "bfloat16"},
    "gguf": {"quantization": "gguf", "dtype": "float32"},
    "gguf, bfloat16": {"quantization": "gguf", "dtype": "bfloat16"},
    "fp8": {"quantization": "fp8", "dtype": "float32"},
    "int8": {"quantization": "int8", "dtype": "float32"},  # of the dequantised weights, quantised again
    "int4": {"quantization": "int4", "dtype": "float32"},
    "gguf, float16 cache": {"quantization": "gguf", "dtype": "float32", "kv_cache_dtype": "float16"},
    "gguf, bfloat16 cache": {"quantization": "gguf", "dtype": "float32", "kv_cache_dtype": "bfloat16"},
    "gguf, int8 cache": {"quantization": "gguf", "dtype": "float32", "kv_cache_dtype": "int8"},
    "gguf, fp8_e4m3 cache": {"quantization": "gguf", "dtype": "float32", "kv_cache_dtype": "fp8_e4m3"},
    "gguf, fp8_e5m2 cache": {"quantization": "gguf", "dtype": "float32", "kv_cache_dtype": "fp8_e5m2"},
    "gguf, int4 cache": {"quantization": "gguf", "dtype": "float32", "kv_cache_dtype": "int4"},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    known = [way for way, options in WAYS.items() if set(options) <= set(names())]
    parser.add_argument("--ways", default=";".join(known), help="separated by semicolons")
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--windows", type=int, default=1 << 20, help="of the text, at most")
    parser.add_argument("--check", action="store_true", help="of smollm2")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(measure(args.model, args.windows, WAYS[args.one])))
        return
    lines = [{"machine": describe_machine(), "model": Path(args.model).name, "text": TEXT.name, "window": WINDOW}]
    if args.check:
        lines.append({"way": "transformers, float32, first window", "perplexity": round(oracle_perplexity(), 4)})
        _show(lines[-1])
    for way in args.ways.split(";"):
        command = [sys.executable, "-m", "benchmarks.perplexity", "--one", way, "--model", args.model]
        command += ["--windows", str(args.windows)]
        found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1])
        lines.append({"way": way, **found})
        _show(lines[-1])
    if args.out:
        args.out.write_text("".join(json.dumps(line) + "\n" for line in lines))


def _show(line: dict[str, Any]) -> None:
    print(json.dumps(line), flush=True)


def windows(ids: list[int]) -> list[list[int]]:
    return [ids[start : start + WINDOW] for start in range(0, len(ids) - 1, WINDOW)]


def measure(model: str, num_windows: int, options: dict[str, Any]) -> dict[str, Any]:
    import torch  # noqa: F401  (its memory is not ours)

    before = resident()
    from cadence import LLM, SamplingParams

    llm = LLM(model, max_model_len=WINDOW + 1, enable_prefix_caching=False, **options)
    loaded = resident() - before
    params = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0)
    parts = windows(llm.get_tokenizer().encode(TEXT.read_text(encoding="utf-8")))[:num_windows]
    start, sums = time.perf_counter(), []
    for part in parts:
        output = llm.generate([{"prompt_token_ids": part}], params, use_tqdm=False)[0]
        assert output.prompt_logprobs is not None
        pairs = zip(output.prompt_logprobs[1:], part[1:], strict=True)
        sums.append(sum(position[token].logprob for position, token in pairs if position is not None))
    count = sum(len(part) - 1 for part in parts)
    return {
        "perplexity": round(math.exp(-sum(sums) / count), 4),
        "first_window": round(math.exp(-sums[0] / (len(parts[0]) - 1)), 4),
        "tokens": count,
        "loaded_mb": round(loaded),
        "seconds": round(time.perf_counter() - start, 1),
    }


def oracle_perplexity() -> float:
    import torch

    from cadence.config.reference import find_model
    from cadence.text.load import tokenizer_for
    from tests.helpers.oracle import logprobs
    from tests.helpers.smollm2 import hf_reference

    ids = windows(tokenizer_for(find_model("smollm2")).encode(TEXT.read_text(encoding="utf-8")))[0]
    lines = logprobs(hf_reference(), ids)
    own = lines[:-1].gather(1, torch.tensor(ids[1:])[:, None])
    return math.exp(-float(own.double().mean()))


def resident() -> float:
    """Megabytes of this process in memory."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    return math.nan


if __name__ == "__main__":
    main()

"""Embeddings on a GPU with dummy weights, beside the limit of the products. One JSON line per case.

    python -m benchmarks.gpu_embeddings [--shapes bert-base,qwen3-0.6b] [--tokens 128,512] [--count 4096]
                                       [--step-tokens 32768] [--out FILE]

Texts are random token ids, all of one length; a warm-up of the same texts, then the best of three. With half a million
tokens a case (`--count` is of texts of 128), the four cases are to take at most 150 seconds on an H200. The limit
counts the multiplications of the layers' matrices alone, at the rate that large products of bfloat16 reach there.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import torch

from benchmarks.machine import describe_machine
from benchmarks.shapes import SHAPES, write_shape
from cadence import LLM


def products(shape: dict) -> int:
    """Multiplications of one token with the matrices of all layers."""
    hidden, inner, layers = shape["hidden_size"], shape["intermediate_size"], shape["num_hidden_layers"]
    heads, head_dim = shape["num_attention_heads"], shape.get("head_dim") or hidden // shape["num_attention_heads"]
    kv_heads = shape.get("num_key_value_heads") or heads
    gates = 2 if shape["model_type"] == "bert" else 3
    return layers * (hidden * head_dim * (2 * heads + 2 * kv_heads) + gates * hidden * inner)


def product_rate() -> float:
    """Multiplications of bfloat16 in a second."""
    square = torch.randn(8192, 8192, dtype=torch.bfloat16, device="cuda")
    best = float("inf")
    for _ in range(5):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(4):
            square @ square
        torch.cuda.synchronize()
        best = min(best, (time.perf_counter() - start) / 4)
    return 8192**3 / best


def measure(name: str, lengths: list[int], options: argparse.Namespace, rate: float) -> Iterator[dict]:
    """For each length of texts, with one engine."""
    with tempfile.TemporaryDirectory() as folder:
        write_shape(name, Path(folder))
        with LLM(
            folder,
            load_format="dummy",
            skip_tokenizer_init=True,
            dtype="bfloat16",
            runner="pooling",
            enable_prefix_caching=False,  # the same texts come again
            max_num_batched_tokens=options.step_tokens,
        ) as llm:
            for tokens in lengths:
                found = _case(llm, name, tokens, options.count * 128 // tokens, rate)
                yield {**found, "step_tokens": options.step_tokens}


def _case(llm: LLM, name: str, tokens: int, count: int, rate: float) -> dict:
    draw = random.Random(0)
    texts = [{"prompt_token_ids": [draw.randrange(1000, 20000) for _ in range(tokens)]} for _ in range(count)]
    llm.embed(texts, use_tqdm=False)
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        llm.embed(texts, use_tqdm=False)
        seconds.append(time.perf_counter() - start)
    per_second, limit = count * tokens / min(seconds), rate / products(SHAPES[name])
    return {
        "shape": name,
        "texts": count,
        "tokens of each": tokens,
        "tokens_per_second": round(per_second),
        "limit": round(limit),
        "share_of_limit": round(per_second / limit, 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--shapes", default="bert-base,qwen3-0.6b")
    parser.add_argument("--tokens", default="128,512")
    parser.add_argument("--count", type=int, default=4096)
    parser.add_argument("--step-tokens", type=int, default=32768)
    parser.add_argument("--out", type=Path, help="a file that gets the lines, too")
    options = parser.parse_args()
    rate, lengths = product_rate(), [int(each) for each in options.tokens.split(",")]
    say(options.out, {"machine": describe_machine(), "bf16_tflop_s": round(2 * rate / 1e12)})
    for name in options.shapes.split(","):
        for line in measure(name, lengths, options, rate):
            say(options.out, line)


def say(out: Path | None, line: dict) -> None:
    """At once: a run that is cut short leaves what it has measured."""
    print(json.dumps(line), flush=True)
    if out:
        with out.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()

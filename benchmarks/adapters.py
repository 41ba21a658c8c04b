"""What adapters cost in a whole engine: rows that take turns among some, no row with one, and an engine that has none,
side by side.

    python -m benchmarks.adapters [--shape llama-3.1-8b] [--rows 32] [--adapters 8] [--rank 16] [--out 128] [--rounds 3]

A well-known shape with dummy weights, random adapters of 16 bits on every linear map of its layers. Tokens a second,
the best of some rounds; one JSON line.
"""

from __future__ import annotations

import argparse
import gc
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu import open_shape
from benchmarks.lora import write_adapter
from benchmarks.machine import describe_machine
from benchmarks.shapes import SHAPES
from cadence import LLM, LoRARequest, SamplingParams


def modules_of(shape: dict[str, Any]) -> list[tuple[str, int, int]]:
    """(name, inputs, outputs) of every linear map of the layers"""
    hidden, inner, dim = shape["hidden_size"], shape["intermediate_size"], shape["head_dim"]
    query, keys = shape["num_attention_heads"] * dim, shape["num_key_value_heads"] * dim
    of_layer = [
        *(("self_attn.q_proj", hidden, query), ("self_attn.k_proj", hidden, keys), ("self_attn.v_proj", hidden, keys)),
        *(("self_attn.o_proj", query, hidden), ("mlp.gate_proj", hidden, inner), ("mlp.up_proj", hidden, inner)),
        ("mlp.down_proj", inner, hidden),
    ]
    layers = range(shape["num_hidden_layers"])
    return [(f"model.layers.{layer}.{name}", cols, rows) for layer in layers for name, cols, rows in of_layer]


def rate(llm: LLM, rows: int, out: int, adapters: list[LoRARequest], rounds: int) -> float:
    """Tokens a second, the prompts' time included, of the best round"""
    params = SamplingParams(temperature=0, max_tokens=out, ignore_eos=True, detokenize=False)
    of_row = [adapters[row % len(adapters)] for row in range(rows)] if adapters else None
    best = float("inf")
    for turn in range(1 + rounds):
        prompts = [[100 + (row * 37 + place * 11 + turn) % 2000 for place in range(128)] for row in range(rows)]
        start = time.perf_counter()
        llm.generate(prompts, params, use_tqdm=False, lora_request=of_row)
        best = min(best, time.perf_counter() - start) if turn else best
    return rows * out / best


def measure(asked: argparse.Namespace) -> dict[str, float]:
    rows, out, rounds = asked.rows, asked.out, asked.rounds
    with tempfile.TemporaryDirectory() as folder:
        adapters = []
        for number in range(asked.adapters):
            path = Path(folder) / str(number)
            path.mkdir()
            write_adapter(path, modules_of(SHAPES[asked.shape]), asked.rank, number)
            adapters.append(LoRARequest(f"adapter-{number}", number + 1, str(path)))
        llm, _ = open_shape(asked.shape, {"max_num_seqs": max(rows, 64)})
        found = {"engine_without": rate(llm, rows, out, [], rounds)}
        del llm
        gc.collect()
        options = {"enable_lora": True, "max_loras": asked.adapters, "max_lora_rank": asked.rank}
        llm, _ = open_shape(asked.shape, {"max_num_seqs": max(rows, 64), **options})
        found["none_in_use"] = rate(llm, rows, out, [], rounds)
        found["in_use"] = rate(llm, rows, out, adapters, rounds)
        found["none_in_use_after"] = rate(llm, rows, out, [], rounds)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="llama-3.1-8b")
    for name, value in {"rows": 32, "adapters": 8, "rank": 16, "out": 128, "rounds": 3}.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    asked = parser.parse_args()
    torch.manual_seed(0)
    found = measure(asked)
    base = found["engine_without"]
    shares = {f"share_{name}": round(value / base, 3) for name, value in found.items() if name != "engine_without"}
    rounded = {name: round(value, 1) for name, value in found.items()}
    print(json.dumps({"machine": describe_machine(), **vars(asked), **rounded, **shares}))


if __name__ == "__main__":
    main()

"""Cadence alone on this CPU with dummy weights, beside what the memory allows. One JSON line per case.

    python -m benchmarks.cpu_shapes [--shape smollm2-135m] [--threads 2] [--cases a,b,c] [--ways bf16,int8,int4]

The work is that of `benchmarks.cpu`, without its files and peers: for machines where those are not. The process keeps
to as many CPUs as it has threads.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from pathlib import Path
from typing import Any

import torch

from benchmarks.cpu import REPETITIONS, Setting, measure
from benchmarks.cpu_linear import Limits
from benchmarks.machine import describe_machine
from benchmarks.shapes import SHAPES, weight_bytes_per_token, write_shape
from tests.helpers.packing import packed_ops

ROWS = {"a": 1, "c": 32}  # of a decode step: what reads all weights once
_BYTES = {"bf16": (2.0, 2.0), "int8": (34 / 32, 34 / 32), "int4": (20 / 32, 34 / 32)}  # a weight inside, of the head


def bytes_per_step(shape: str, way: str) -> float:
    """Weights that a decode step reads."""
    head = SHAPES[shape]["vocab_size"] * SHAPES[shape]["hidden_size"]
    inside = weight_bytes_per_token(shape) / 2 - head
    per_inside, per_head = _BYTES[way]
    return inside * per_inside + head * per_head


def setting(way: str) -> Setting:
    options: dict[str, Any] = {"load_format": "dummy", "skip_tokenizer_init": True}
    return Setting("cadence", way, options=options if way == "bf16" else {**options, "quantization": way})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="smollm2-135m", choices=sorted(SHAPES))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--cases", default="a,b,c")
    parser.add_argument("--ways", default="bf16,int8,int4")
    parser.add_argument("--repetitions", type=int, default=0)
    args = parser.parse_args()
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: args.threads])
    torch.set_num_threads(args.threads)  # it has counted the CPUs of before
    limits = Limits()
    about = {"machine": describe_machine(), "instruction_set": packed_ops().isa}
    print(json.dumps({**about, "shape": args.shape, "threads": args.threads}), flush=True)
    with tempfile.TemporaryDirectory() as folder:
        model = write_shape(args.shape, Path(folder))
        for case in args.cases.split(","):
            for way in args.ways.split(","):
                asked = argparse.Namespace(threads=args.threads, repetitions=args.repetitions or REPETITIONS[case])
                line = measure(setting(way), case, model, asked)
                if case in ROWS and "failed" not in line:
                    nbytes = bytes_per_step(args.shape, way)
                    bandwidth = limits.bandwidth(int(nbytes))
                    limit = ROWS[case] * bandwidth / nbytes
                    line |= {"gb_per_s": round(bandwidth / 1e9, 1), "limit_tokens_per_second": round(limit, 1)}
                    line["share_of_limit"] = round(line["tokens_per_second"] / limit, 3)
                    if case == "c":
                        line["decode_share_of_limit"] = round(line["decode_tokens_per_second"] / limit, 3)
                print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()

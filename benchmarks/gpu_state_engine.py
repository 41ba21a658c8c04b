"""A whole engine with the Mamba-2 2.7B shape and dummy weights: how near decoding is to what memory allows, and that it
is as fast after a long prompt. Called by `benchmarks.gpu_states`."""

from __future__ import annotations

import gc
import time
from functools import partial
from typing import Any, Protocol

import torch

from benchmarks.gpu import open_shape, run, uniform
from benchmarks.gpu_profile import profile_decode
from benchmarks.shapes import SHAPES, weight_bytes_per_token
from benchmarks.state_layers import MAMBA2

SHAPE = "mamba2-2.7b"
BYTES_PER_SECOND = 4.2e12
LONG = 100_000


class Report(Protocol):
    def add(self, **line: Any) -> None: ...

    def fault(self, what: str, problem: object) -> None: ...


def limit_seconds(batch: int) -> float:
    """Of a step: weights are read once; states of every row are read and written."""
    inputs = 2 * 2 * (MAMBA2.taps - 1) * MAMBA2.channels
    states = MAMBA2.layers * batch * (2 * MAMBA2.state_bytes + inputs)
    return (weight_bytes_per_token(SHAPE) + states) / BYTES_PER_SECOND


def decode_step(llm: Any, batch: int, prompt: int, tokens: int) -> tuple[float, float]:
    """-> (seconds of a step, of the prompt with its first token)"""
    vocab = SHAPES[SHAPE]["vocab_size"]
    run(llm, uniform(batch, prompt, tokens), vocab, 0)
    whole = min(run(llm, uniform(batch, prompt, tokens), vocab, seed) for seed in (1, 2))
    first = min(run(llm, uniform(batch, prompt, 1), vocab, seed) for seed in (1, 2))
    return (whole - first) / (tokens - 1), first


def run_engine(report: Report) -> None:
    begun = time.perf_counter()
    try:
        llm, started = open_shape(SHAPE, {"max_model_len": LONG + 1024, "max_num_seqs": 64})
        report.add(section="engine", name="start", seconds=round(started, 1))
        for batch, prompt, tokens in ((1, 128, 257), (64, 128, 257), (1, 1000, 129), (1, LONG, 129)):
            step, first = decode_step(llm, batch, prompt, tokens)
            line = {"step_ms": round(step * 1e3, 3), "tokens_per_second": round(batch / step, 1)}
            line |= {"limit_ms": round(limit_seconds(batch) * 1e3, 3), "share": round(limit_seconds(batch) / step, 3)}
            line |= {"prompt_seconds": round(first, 4), "prompt_tokens_per_second": round(batch * prompt / first)}
            report.add(section="engine", name=f"{batch} x {prompt}", **line)
        for batch in (1, 64):
            found = profile_decode(partial(run, llm, uniform(batch, 128, 64), SHAPES[SHAPE]["vocab_size"], 3))
            table = [line for line in found.table.splitlines() if line.strip()][:24]
            figures = {"idle_share": round(found.idle_share, 4), "kernels_per_token": round(found.kernels / 64, 1)}
            report.add(section="engine", name=f"profile of {batch}", **figures, table=table, gaps=found.gaps)
        del llm
    except Exception as problem:
        report.fault("engine", repr(problem))
    gc.collect()
    torch.cuda.empty_cache()
    report.add(section="engine", name="all", seconds=round(time.perf_counter() - begun, 1))

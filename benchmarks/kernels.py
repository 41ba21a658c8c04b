"""Times each op of the chosen kernels against plain torch, in one process and alternating; prints JSON.

    python -m benchmarks.kernels [--device cpu|cuda] [--quick]

Shapes are SmolLM2-135M's on the CPU and Llama-3.1-8B's on the GPU. Times are medians in microseconds; on the GPU they
are the device's own (calls replayed from a graph), and `launch_us` is what a call costs the host.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

import torch
import torch.nn.functional as F

from cadence.device.base import Device
from cadence.device.probe import open_device
from cadence.kernels.interface.attention_batch import AttentionBatch, AttentionShape
from cadence.kernels.interface.ops import Ops
from cadence.kernels.reference.ops import ReferenceOps
from cadence.kernels.select import select_ops


@dataclass(frozen=True)
class Model:
    hidden: int
    inner: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    dtype: torch.dtype


_GRAPH_CALLS = 20
SMOLLM2 = Model(576, 1536, 9, 3, 64, 49152, torch.float32)
LLAMA_8B = Model(4096, 14336, 32, 8, 128, 128256, torch.bfloat16)


@dataclass(frozen=True)
class Result:
    op: str
    case: str
    ours_us: float
    torch_us: float
    speedup: float
    launch_us: float


class Bench:
    def __init__(self, device: Device, repeats: int) -> None:
        self._device = device
        self._repeats = repeats
        self.results: list[Result] = []

    def compare(self, op: str, case: str, ours: Callable[[], object], theirs: Callable[[], object]) -> None:
        launch = self._launch_time(ours)
        times: list[list[float]] = [[], []]
        calls = [self._prepared(ours), self._prepared(theirs)]
        for round_index in range(self._repeats + 2):
            for index, (call, count) in enumerate(calls):
                self._device.synchronize()
                start = time.perf_counter()
                call()
                self._device.synchronize()
                if round_index >= 2:
                    times[index].append((time.perf_counter() - start) / count)
        a, b = (statistics.median(values) * 1e6 for values in times)
        self.results.append(Result(op, case, round(a, 1), round(b, 1), round(b / a, 2), round(launch * 1e6, 1)))

    def _prepared(self, call: Callable[[], object]) -> tuple[Callable[[], object], int]:
        """What to time, and how many calls it makes."""
        call()  # compiles, plans, allocates
        if self._device.caps.kind == "cpu":
            return call, 1
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(_GRAPH_CALLS):
                call()
        return graph.replay, _GRAPH_CALLS

    def _launch_time(self, call: Callable[[], object]) -> float:
        call()  # compiles
        self._device.synchronize()
        if self._device.caps.kind == "cpu":
            return 0.0
        start = time.perf_counter()
        for _ in range(_GRAPH_CALLS):
            call()
        return (time.perf_counter() - start) / _GRAPH_CALLS


def make_batch(device: torch.device, sequences: list[tuple[int, int]], block_size: int) -> AttentionBatch:
    """Sequences as (cached, new); blocks handed out in a scattered order."""
    lens = [cached + new for cached, new in sequences]
    counts = [-(-n // block_size) for n in lens]
    order = torch.randperm(sum(counts), dtype=torch.int32)
    table = torch.zeros((len(lens), max(counts)), dtype=torch.int32)
    slots, taken = [], 0
    for row, (count, (cached, new)) in enumerate(zip(counts, sequences, strict=True)):
        table[row, :count] = order[taken : taken + count]
        positions = torch.arange(cached, cached + new)
        slots.append(table[row, positions // block_size].long() * block_size + positions % block_size)
        taken += count
    starts = torch.tensor([0, *torch.tensor([new for _, new in sequences]).cumsum(0).tolist()], dtype=torch.int32)
    return AttentionBatch(
        rows=torch.arange(len(lens), dtype=torch.int32, device=device),
        query_start=starts.to(device),
        seq_lens=torch.tensor(lens, dtype=torch.int32, device=device),
        block_tables=(table.to(device),),
        slots=(torch.cat(slots).to(device),),
        num_single=next((i for i, (_, new) in enumerate(sequences) if new > 1), len(sequences)),
        max_query_len=max(new for _, new in sequences),
    )


def bench_attention(bench: Bench, ops: Ops, model: Model, device: torch.device, block_size: int = 16) -> None:
    shape = AttentionShape(model.heads, model.kv_heads, model.head_dim, model.head_dim**-0.5)
    for length in (128, 512, 1024):
        batch = make_batch(device, [(0, length)], block_size)
        q, kv = _attention_tensors(model, batch, device, block_size)
        dense = [
            torch.randn((1, h, length, model.head_dim), dtype=model.dtype, device=device)
            for h in (model.heads, model.kv_heads, model.kv_heads)
        ]
        bench.compare(
            "attention prefill",
            f"1 x {length}",
            lambda q=q, kv=kv, batch=batch: ops.paged_attention(q, kv, batch, 0, shape),
            lambda dense=dense: F.scaled_dot_product_attention(*dense, is_causal=True, enable_gqa=True),
        )
    for count, length in ((1, 256), (1, 4096), (32, 256), (32, 1024)):
        batch = make_batch(device, [(length - 1, 1)] * count, block_size)
        q, kv = _attention_tensors(model, batch, device, block_size)
        # torch has no paged kernel: it is given dense caches, gathered beforehand at no charge
        dense = [
            torch.randn((count, h, n, model.head_dim), dtype=model.dtype, device=device)
            for h, n in ((model.heads, 1), (model.kv_heads, length), (model.kv_heads, length))
        ]
        bench.compare(
            "attention decode",
            f"{count} x {length}",
            lambda q=q, kv=kv, batch=batch: ops.paged_attention(q, kv, batch, 0, shape),
            lambda dense=dense: F.scaled_dot_product_attention(*dense, enable_gqa=True),
        )


def _attention_tensors(
    model: Model, batch: AttentionBatch, device: torch.device, block_size: int
) -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
    num_blocks = int(batch.block_tables[0].max()) + 1
    cache_shape = (num_blocks, model.kv_heads, block_size, model.head_dim)
    k, v = (torch.randn(cache_shape, dtype=model.dtype, device=device) for _ in range(2))
    q = torch.randn((int(batch.query_start[-1]), model.heads, model.head_dim), dtype=model.dtype, device=device)
    return q, (k, v)


def bench_linear(bench: Bench, ops: Ops, model: Model, device: torch.device) -> None:
    qkv = (model.heads + 2 * model.kv_heads) * model.head_dim
    shapes = {
        "qkv": (qkv, model.hidden),
        "up": (2 * model.inner, model.hidden),
        "down": (model.hidden, model.inner),
        "head": (model.vocab, model.hidden),
    }
    for name, (out_dim, in_dim) in shapes.items():
        weight = torch.randn((out_dim, in_dim), dtype=model.dtype, device=device)
        for rows in (1, 4, 32, 256):
            x = torch.randn((rows, in_dim), dtype=model.dtype, device=device)
            bench.compare(
                "linear",
                f"{name} {rows} x {in_dim} -> {out_dim}",
                lambda x=x, weight=weight: ops.linear(x, weight, None),
                lambda x=x, weight=weight: F.linear(x, weight),
            )


def bench_rest(bench: Bench, ops: Ops, model: Model, device: torch.device) -> None:
    plain = ReferenceOps()
    width = (model.heads + 2 * model.kv_heads) * model.head_dim
    cos_sin = torch.randn((4096, model.head_dim), device=device)
    gain = torch.randn(model.hidden, dtype=model.dtype, device=device)
    for rows in (1, 32, 512):
        x = torch.randn((rows, model.hidden), dtype=model.dtype, device=device)
        gated = torch.randn((rows, 2 * model.inner), dtype=model.dtype, device=device)
        heads = torch.randn((rows, width), dtype=model.dtype, device=device).view(rows, -1, model.head_dim)
        q, k, v = heads.split([model.heads, model.kv_heads, model.kv_heads], dim=1)
        positions = torch.arange(rows, device=device)
        cache = [torch.zeros((rows, model.kv_heads, 16, model.head_dim), dtype=model.dtype, device=device)] * 2
        calls = {
            "rms_norm": lambda o, x=x: o.rms_norm(x, gain, 1e-5),
            "add_rms_norm": lambda o, x=x: o.add_rms_norm(x, x, gain, 1e-5),
            "silu_mul": lambda o, gated=gated: o.silu_mul(gated),
            "gelu_tanh_mul": lambda o, gated=gated: o.gelu_tanh_mul(gated),
            "rope": lambda o, q=q, k=k, positions=positions: o.rope(q, k, positions, cos_sin),
            "write_kv": lambda o, k=k, v=v, cache=cache, positions=positions: o.write_kv((k, v), cache, positions),
        }
        for name, call in calls.items():
            bench.compare(name, f"{rows} rows", lambda call=call: call(ops), lambda call=call: call(plain))
    for rows in (1, 32):
        seeds = torch.arange(rows, device=device)
        bench.compare(
            "gumbel_noise",
            f"{rows} x {model.vocab}",
            lambda seeds=seeds: ops.gumbel_noise(seeds, seeds, model.vocab),
            lambda seeds=seeds: plain.gumbel_noise(seeds, seeds, model.vocab),
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="auto", choices=("auto", "cpu", "cuda"))
    parser.add_argument("--quick", action="store_true", help="fewer repeats")
    options = parser.parse_args()
    device = open_device(options.device)
    ops = select_ops(device)
    model = LLAMA_8B if device.caps.kind == "cuda" else SMOLLM2
    bench = Bench(device, repeats=5 if options.quick else 20)
    with torch.inference_mode():
        bench_attention(bench, ops, model, device.torch_device)
        bench_linear(bench, ops, model, device.torch_device)
        bench_rest(bench, ops, model, device.torch_device)
    report = {
        "device": device.caps.name,
        "torch": torch.__version__,
        "kernels": ops.name,
        "results": [asdict(result) for result in bench.results],
    }
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()

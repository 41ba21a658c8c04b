"""Times the ops of layers that keep a state on the CPU, against what the machine's memory and arithmetic allow; prints
JSON.

    python -m benchmarks.states [--quick] [--only scan]

Shapes are those of Mamba 130M, Mamba-2 130M and a Qwen3-Next layer; every layer of a model has tables and weights of
its own, and a forward of them all is replayed as one recorded list. `limit_us` is the longer of two times: of the bytes
that have to move, at the speed of a copy, and of the operations that the formula has, at the speed of a product of
float32 matrices. Times are the best of some, of a layer: others may use the machine.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

import torch

from cadence.device.calls import Calls
from cadence.device.cpus import usable_cpus
from cadence.kernels.cpu.ops import CpuOps
from cadence.kernels.interface.state_ops import DeltaRule, HeadScan, Scan, StateOps, StateRuns, StateTable

_DTYPE = torch.bfloat16
_EXP = 12.0  # operations of an exponential, beside the one that every entry has
_CASES = ((1, 1), (8, 1), (1, 512))  # rows, tokens of each


@dataclass(frozen=True)
class Work:
    """Of a layer: what it does to a token, and the numbers of that."""

    call: Callable[[StateOps, int, StateRuns], torch.Tensor]  # of tokens in all
    state: int  # entries
    operations: float  # of an entry of the state, for a token
    bytes_per_token: int  # in and out
    weight_bytes: int


@dataclass(frozen=True)
class Result:
    op: str
    rows: int
    tokens: int
    us: float
    limit_us: float
    of_limit: float
    bound_by: str


def drawn(*shape: int) -> torch.Tensor:
    return torch.randn(shape) * 0.5


def runs_of(rows: int, tokens: int) -> StateRuns:
    every = torch.arange(rows, dtype=torch.int32)
    none, certain = torch.zeros_like(every), torch.full_like(every, tokens)
    start = torch.arange(rows + 1, dtype=torch.int32) * tokens
    return StateRuns(every, start, none, certain, none, rows if tokens == 1 else 0, tokens)


def scan(rows: int, tokens: int) -> Work:
    size, state = 1536, 16
    inputs = drawn(rows * tokens, 2 * size + 2 * state).to(_DTYPE)
    layer = Scan(-drawn(state, size).exp(), drawn(size), drawn(size) - 3)
    table = StateTable(torch.zeros(rows, state, size), torch.zeros(rows, 0, 2 * size + state, dtype=_DTYPE))

    def call(ops: StateOps, _: int, runs: StateRuns) -> torch.Tensor:
        x, dt, b, c = inputs.split([size, size, state, state], dim=1)
        return ops.scan(x, dt, b, c, layer, table, runs)

    return Work(call, state * size, 3 + _EXP, (3 * size + 2 * state) * 2, (state + 2) * size * 4)


def head_scan(rows: int, tokens: int) -> Work:
    heads, size, state = 24, 64, 128
    sizes = [heads * size, state, state, heads]
    inputs = drawn(rows * tokens, sum(sizes)).to(_DTYPE)
    layer = HeadScan(-drawn(heads).exp(), drawn(heads), drawn(heads) - 3)
    kept = torch.zeros(rows, 0, heads * size + heads + state, dtype=_DTYPE)
    table = StateTable(torch.zeros(rows, heads, state, size), kept)

    def call(ops: StateOps, count: int, runs: StateRuns) -> torch.Tensor:
        x, b, c, dt = inputs.split(sizes, dim=1)
        b, c = b.view(count, 1, state), c.view(count, 1, state)
        return ops.head_scan(x.view(count, heads, size), dt, b, c, layer, table, runs)

    return Work(call, heads * size * state, 3, (2 * heads * size + heads + 2 * state) * 2, heads * 12)


def delta_rule(rows: int, tokens: int) -> Work:
    key_heads, heads, size = 16, 32, 128
    sizes = [key_heads * size, key_heads * size, heads * size, heads, heads]
    inputs = drawn(rows * tokens, sum(sizes)).to(_DTYPE)
    layer = DeltaRule(-drawn(heads).exp(), drawn(heads) - 3)
    kept = torch.zeros(rows, 0, sum(sizes[1:]), dtype=_DTYPE)
    table = StateTable(torch.zeros(rows, heads, size, size), kept)

    def call(ops: StateOps, count: int, runs: StateRuns) -> torch.Tensor:
        q, k, v, decay, beta = inputs.split(sizes, dim=1)
        q, k = q.view(count, key_heads, size), k.view(count, key_heads, size)
        return ops.delta_rule((q, k, v.view(count, heads, size)), decay, beta, layer, table, runs)

    return Work(call, heads * size * size, 4, (sum(sizes) + heads * size) * 2, heads * 8)


def short_conv(rows: int, tokens: int) -> Work:
    channels, taps = 1792, 4
    x, weight, bias = drawn(rows * tokens, channels), drawn(channels, taps), drawn(channels)
    x, weight, bias = (part.to(_DTYPE) for part in (x, weight, bias))
    inputs = torch.zeros(rows, taps - 1, channels, dtype=_DTYPE)

    def call(ops: StateOps, _: int, runs: StateRuns) -> torch.Tensor:
        return ops.short_conv(x, weight, bias, inputs, runs, silu=True)

    return Work(call, channels * (taps - 1) // 2, 2 * (taps + 3 + _EXP) / 3, 4 * channels, channels * (taps + 1) * 2)


def gated_norm(rows: int, tokens: int) -> Work:
    size = 1536
    x, gate, weight = (
        part.to(_DTYPE) for part in (drawn(rows * tokens, 2 * size), drawn(rows * tokens, size), drawn(size))
    )

    def call(ops: StateOps, _: int, runs: StateRuns) -> torch.Tensor:
        return ops.gated_norm(x[:, :size], gate, weight, 1e-5, group=size, norm_first=False)

    return Work(call, size, (6 + _EXP), 6 * size, 2 * size)


WORKS = {"scan": scan, "head_scan": head_scan, "delta_rule": delta_rule, "short_conv": short_conv}
STATELESS = {"gated_norm": gated_norm}


def best_seconds(run: Callable[[], object], repeats: int) -> float:
    times = []
    for _ in range(repeats + 2):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times[2:])


def machine() -> tuple[float, float]:
    """Bytes a second that a copy reads and writes; float32 operations a second of a product, a fused one being one."""
    a, b = torch.zeros(1 << 24), torch.zeros(1 << 24)
    x = torch.randn(512, 512)
    return 2 * a.numel() * 4 / best_seconds(lambda: b.copy_(a), 20), 512**3 / best_seconds(lambda: x @ x, 100)


def measured(name: str, case: tuple[int, int], limits: tuple[float, float], arguments: argparse.Namespace) -> Result:
    make = {**WORKS, **STATELESS}[name]
    (rows, tokens), layers = case, arguments.layers
    calls, runs = Calls(arguments.threads), runs_of(rows, tokens)
    ops = CpuOps(calls).states
    works = [make(rows, tokens) for _ in range(layers)]
    graph, _ = calls.record(lambda: [work.call(ops, rows * tokens, runs) for work in works])
    seconds = best_seconds(lambda: graph.replay(lambda: []), 5 if arguments.quick else 30) / layers
    work = works[0]
    state_bytes = 0 if name in STATELESS else 2 * rows * work.state * 4
    moved = (state_bytes + rows * tokens * work.bytes_per_token + work.weight_bytes) / limits[0]
    counted = rows * tokens * work.state * work.operations / limits[1]
    limit = max(moved, counted)
    bound = "memory" if moved > counted else "arithmetic"
    us, limit_us = round(seconds * 1e6, 1), round(limit * 1e6, 1)
    return Result(name, rows, tokens, us, limit_us, round(limit / seconds, 2), bound)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", default="")
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--threads", type=int, default=usable_cpus())
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    limits = machine()
    print(json.dumps({"copy_gb_s": round(limits[0] / 1e9, 1), "g_operations_s": round(limits[1] / 1e9, 1)}))
    for name in [arguments.only] if arguments.only else [*WORKS, *STATELESS]:
        for case in _CASES:
            print(json.dumps(asdict(measured(name, case, limits, arguments))), flush=True)


if __name__ == "__main__":
    main()

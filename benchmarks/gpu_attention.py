"""Times paged attention on a GPU inside graph replays, beside the limits of memory and matrix units.

    python -m benchmarks.gpu_attention [--sweep] [--compile I/N]

One JSON line per case and tile. `--sweep` tries every tile instead of the chosen one; `--compile I/N` only compiles
the I-th of N shares of the work, so that N processes fill the cache at once before the timed run.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from benchmarks.machine import describe_machine
from cadence.kernels.interface.attention_batch import LONG, AttentionBatch, AttentionShape, LongRun
from cadence.kernels.triton.attention.attention import PagedAttention
from cadence.kernels.triton.attention.attention_prefill import PrefillTile, QuerySpan, attend_prefill
from cadence.kernels.triton.attention.attention_split import SplitTile, attend_split

_BLOCK_SIZE = 16
_COLD_BYTES = 256 << 20  # caches rotate through more than this, so that none is found in the L2 cache
_MAX_CACHES = 256
_REPLAYS = 7
CHOSEN, FIXED = PagedAttention(), PagedAttention(deterministic=True)


@dataclass(frozen=True)
class Case:
    name: str
    sequences: tuple[tuple[int, int], ...]  # tokens cached, tokens of this step
    heads: int = 32
    kv_heads: int = 8
    head_dim: int = 128
    tuned: bool = False  # `--sweep` tries every tile on it

    @property
    def shape(self) -> AttentionShape:
        return AttentionShape(self.heads, self.kv_heads, self.head_dim, self.head_dim**-0.5)

    @property
    def decode(self) -> bool:
        return all(new == 1 for _, new in self.sequences)

    @property
    def kv_bytes(self) -> int:
        return sum(cached + new for cached, new in self.sequences) * self.kv_heads * self.head_dim * 4

    @property
    def flops(self) -> float:
        pairs = sum(new * cached + new * (new + 1) / 2 for cached, new in self.sequences)
        return 4.0 * pairs * self.heads * self.head_dim


def ragged(count: int, low: int, high: int) -> tuple[tuple[int, int], ...]:
    rng = random.Random(0)
    return tuple((rng.randint(low, high) - 1, 1) for _ in range(count))


CASES = (
    Case("decode 1 x 128", ((127, 1),), tuned=True),
    Case("decode 1 x 512", ((511, 1),), tuned=True),
    Case("decode 1 x 2048", ((2047, 1),), tuned=True),
    Case("decode 1 x 256, 9/3 heads of 64", ((255, 1),), 9, 3, 64),
    Case("decode 1 x 256, 16/8 heads", ((255, 1),), 16),
    Case("decode 4 x 800", ((799, 1),) * 4, tuned=True),
    Case("decode 16 x 800", ((799, 1),) * 16, tuned=True),
    Case("decode 64 x 300", ((299, 1),) * 64),
    Case("decode 64 x 800", ((799, 1),) * 64, tuned=True),
    Case("decode 256 x 800", ((799, 1),) * 256, tuned=True),
    Case("decode 256 x 800, 16/8 heads", ((799, 1),) * 256, 16, tuned=True),
    Case("decode 256 x 100..2000", ragged(256, 100, 2000), tuned=True),
    Case("decode 256 x 100..2000, 16/8 heads", ragged(256, 100, 2000), 16),
    Case("decode 256 x 100..2000, 9/3 heads of 64", ragged(256, 100, 2000), 9, 3, 64, tuned=True),
    Case("prefill 16 x 2048", ((0, 2048),) * 16, tuned=True),
    Case("prefill 16 x 2048, 16/8 heads", ((0, 2048),) * 16, 16),
    Case("prefill 16 x 2048, 9/3 heads of 64", ((0, 2048),) * 16, 9, 3, 64, tuned=True),
    Case("prefill 1 x 128", ((0, 128),), tuned=True),
    Case("prefill 1 x 2048", ((0, 2048),)),
    *(Case(f"prefill 8192 after {before}", ((before, 8192),)) for before in (0, 8192, 16384, 24576, 57344)),
    Case("prefill 4 x 512 after 2048", ((2048, 512),) * 4),
    Case("verify 16 x 4 after 800", ((800, 4),) * 16),
    Case("mixed 200 x 800 and 4 x 512", ((799, 1),) * 200 + ((0, 512),) * 4),
)
FEW_TILES = tuple(  # keys, warps, stages, splits
    (*tile, splits)
    for tile in ((128, 4, 1), (128, 4, 2), (128, 4, 3), (64, 4, 1), (64, 4, 3), (64, 4, 4), (32, 2, 4))
    for splits in (1, 2, 4, 8, 16)
)
MANY_TILES = ((64, 4, 3, 1), (64, 4, 4, 1), (32, 2, 4, 1), (32, 2, 5, 1), (128, 4, 3, 1))
PREFILL_TILES = (  # rows, keys, warps, stages
    *((64, 32, 4, 2), (64, 32, 4, 3), (64, 32, 4, 4), (64, 64, 4, 2), (64, 64, 4, 3), (64, 128, 4, 3)),
    *((128, 32, 4, 3), (128, 64, 4, 3), (128, 64, 8, 3), (128, 128, 8, 2)),
)


class Bench:
    def __init__(self, case: Case, num_caches: int | None = None) -> None:
        self.case = case
        self.batch = make_batch(case)
        num_blocks = int(self.batch.block_tables[0].max()) + 1
        count = num_caches or max(min(_COLD_BYTES // case.kv_bytes, _MAX_CACHES), 1)
        cache_shape = (num_blocks, case.kv_heads, _BLOCK_SIZE, case.head_dim)
        first = [torch.randn(cache_shape, dtype=torch.bfloat16, device="cuda") for _ in range(2)]
        self.caches = [(first[0], first[1]), *((first[0].clone(), first[1].clone()) for _ in range(count - 1))]
        tokens = int(self.batch.query_start[-1])
        self.q = torch.randn((tokens, case.heads, case.head_dim), dtype=torch.bfloat16, device="cuda")

    def chosen(self, kv: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        return CHOSEN.run(self.q, kv, self.batch, 0, self.case.shape)

    def fixed(self, kv: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        return FIXED.run(self.q, kv, self.batch, 0, self.case.shape)

    def variants(
        self, sweep: bool
    ) -> Iterator[tuple[str, Callable[[tuple[torch.Tensor, torch.Tensor]], torch.Tensor]]]:
        yield "chosen", self.chosen
        yield "deterministic", self.fixed
        if not (sweep and self.case.tuned):
            return
        if not self.case.decode:
            for tile in PREFILL_TILES:
                yield str(tile), lambda kv, tile=tile: self.prefill(kv, PrefillTile(*tile))
            return
        for tile in FEW_TILES if len(self.case.sequences) <= 16 else MANY_TILES:
            yield str(tile), lambda kv, tile=tile: self.split(kv, SplitTile(*tile))

    def prefill(self, kv: tuple[torch.Tensor, torch.Tensor], tile: PrefillTile) -> torch.Tensor:
        out = torch.empty_like(self.q)
        whole = QuerySpan(0, self.batch.num_sequences, 0, self.q.shape[0])
        attend_prefill(out, self.q, kv, self.batch, 0, self.case.shape, tile, whole)
        return out

    def split(self, kv: tuple[torch.Tensor, torch.Tensor], tile: SplitTile) -> torch.Tensor:
        out = torch.empty_like(self.q)
        everyone = slice(0, self.batch.num_sequences)
        counters = CHOSEN.state(self.q.device).counters
        attend_split(out, self.q, kv, self.batch, 0, self.case.shape, tile, everyone, 1, counters, pdl=False)
        return out

    def measure(self, call: Callable[[tuple[torch.Tensor, torch.Tensor]], torch.Tensor]) -> float:
        """Median seconds of one call, back to back in a graph, each with the next cache."""
        call(self.caches[0])
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for kv in self.caches * max(4 // len(self.caches), 1):
                call(kv)
        launches = len(self.caches) * max(4 // len(self.caches), 1)
        graph.replay()
        times = []
        for _ in range(_REPLAYS):
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            graph.replay()
            end.record()
            end.synchronize()
            times.append(start.elapsed_time(end) / launches / 1e3)
        return statistics.median(times)


def make_batch(case: Case) -> AttentionBatch:
    """Blocks handed out in a scattered order."""
    lens = [cached + new for cached, new in case.sequences]
    counts = [-(-n // _BLOCK_SIZE) for n in lens]
    order = torch.randperm(sum(counts), generator=torch.Generator().manual_seed(0)).int()
    table = torch.zeros((len(lens), max(counts)), dtype=torch.int32)
    for row, blocks in enumerate(order.split(counts)):
        table[row, : len(blocks)] = blocks
    new = [count for _, count in case.sequences]
    is_long = len(new) == 1 and new[0] >= LONG
    return AttentionBatch(
        rows=torch.arange(len(lens), dtype=torch.int32, device="cuda"),
        query_start=torch.tensor([0, *torch.tensor(new).cumsum(0).tolist()], dtype=torch.int32, device="cuda"),
        seq_lens=torch.tensor(lens, dtype=torch.int32, device="cuda"),
        block_tables=(table.cuda(),),
        slots=(torch.zeros(sum(new), dtype=torch.int64, device="cuda"),),
        num_single=new.index(max(new)) if max(new) > 1 else len(new),
        max_query_len=max(new),
        long_runs=(LongRun(0, 0, new[0], case.sequences[0][0]),) if is_long else (),
    )


def result(bench: Bench, tile: str, seconds: float, error: float) -> dict[str, Any]:
    case = bench.case
    line = {"case": case.name, "tile": tile, "us": round(seconds * 1e6, 2), "error": round(error, 5)}
    if case.decode:
        line["kv_tb_s"] = round(case.kv_bytes / seconds / 1e12, 3)
    else:
        line["tflop_s"] = round(case.flops / seconds / 1e12, 1)
    return line


def dense_prefill(case: Case) -> dict[str, Any]:
    """torch's own attention on dense tensors of the same sizes."""
    count, length = len(case.sequences), case.sequences[0][1]
    dense = [
        torch.randn((count, heads, length, case.head_dim), dtype=torch.bfloat16, device="cuda")
        for heads in (case.heads, case.kv_heads, case.kv_heads)
    ]
    call = lambda _: F.scaled_dot_product_attention(*dense, is_causal=True, enable_gqa=True)  # noqa: E731
    bench = Bench(case, 1)
    return result(bench, "torch, dense", bench.measure(call), 0.0)


def run(sweep: bool) -> None:
    nothing = torch.zeros(1, device="cuda")
    empty = Bench(CASES[0]).measure(lambda _: nothing.add_(1))
    print(json.dumps({"machine": describe_machine(), "empty_launch_us": round(empty * 1e6, 2)}), flush=True)
    for case in CASES:
        bench = Bench(case)
        wanted = bench.fixed(bench.caches[-1]).float()
        for name, call in bench.variants(sweep):
            try:
                error = float((call(bench.caches[-1]).float() - wanted).norm() / wanted.norm())
                line = result(bench, name, bench.measure(call), error)
            except Exception as problem:  # a tile too large for the device is a result too
                line = {"case": case.name, "tile": name, "failed": str(problem)[:200]}
            print(json.dumps(line), flush=True)
        if case.name.startswith("prefill 16"):
            print(json.dumps(dense_prefill(case)), flush=True)
        del bench
        torch.cuda.empty_cache()


def compile_share(share: int, shares: int, sweep: bool) -> None:
    index = 0
    for case in CASES:
        bench = Bench(case, 1)
        for _, call in bench.variants(sweep):
            index += 1
            if index % shares == share:
                with contextlib.suppress(Exception):  # the timed run says what failed
                    call(bench.caches[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sweep", action="store_true")
    parser.add_argument("--compile", metavar="I/N")
    options = parser.parse_args()
    with torch.inference_mode():
        if options.compile:
            share, shares = map(int, options.compile.split("/"))
            compile_share(share, shares, options.sweep)
        else:
            run(options.sweep)


if __name__ == "__main__":
    main()

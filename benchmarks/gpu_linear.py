"""Times linear layers, whole decode steps and draws on a GPU inside graph replays, beside what plain torch takes.

    python -m benchmarks.gpu_linear [--sweep] [--only rows,steps,draw,fixed] [--compile I/N]

One JSON line per case. `--sweep` tries every tile of the one-row kernel; `--compile I/N` only compiles the I-th of N
shares of that sweep, so that N processes fill the cache at once before the timed run.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F

from benchmarks.machine import describe_machine
from benchmarks.shapes import SHAPES
from cadence.kernels.interface.attention_batch import AttentionBatch
from cadence.kernels.interface.ops import DrawParams
from cadence.kernels.triton.linear import gemv
from cadence.kernels.triton.linear.gemv import Entry, Tile, choose_tile, few_tokens
from cadence.kernels.triton.linear.matmul import Tiles, choose_tiles, fixed_linear
from cadence.kernels.triton.ops import TritonOps
from cadence.models.interface.build import BuildContext
from cadence.models.interface.model import ForwardContext, LayerCache, ModelInputs
from cadence.models.loader.dummy import fill_dummy
from cadence.models.registry import model_class

_COLD_BYTES = 256 << 20  # weights rotate through more than this, so that none is found in the L2 cache
_REPLAYS = 5
_BLOCK_SIZE = 16


@dataclass(frozen=True)
class Case:
    model: str
    layer: str
    rows: int  # of the weight
    width: int

    @property
    def gate(self) -> str:
        return "silu" if self.layer == "gate_up" else ""

    @property
    def norm(self) -> bool:
        return self.layer in ("qkv", "gate_up")


def cases() -> Iterator[Case]:
    for name, shape in SHAPES.items():
        hidden, inner, dim = shape["hidden_size"], shape["intermediate_size"], shape["head_dim"]
        heads, kv_heads = shape["num_attention_heads"], shape["num_key_value_heads"]
        yield Case(name, "qkv", (heads + 2 * kv_heads) * dim, hidden)
        yield Case(name, "out", hidden, heads * dim)
        yield Case(name, "gate_up", 2 * inner, hidden)
        yield Case(name, "down", hidden, inner)
        yield Case(name, "head", shape["vocab_size"], hidden)


TILES = [
    *(Tile(rows, 256, 1) for rows in (4, 8, 16)),
    *(Tile(rows, 512, 2) for rows in (4, 8, 16)),
    *(Tile(rows, 1024, 4) for rows in (2, 4, 8, 16)),
    *(Tile(rows, 2048, 4) for rows in (2, 4)),
    *(Tile(rows, 2048, 8) for rows in (2, 4, 8)),
    *(Tile(rows, 4096, 8) for rows in (2, 4)),
]


def tiles_for(case: Case) -> list[Tile]:
    """Those that fit: not much wider than the rows, unrolled at most 16 times, two rows at least with a gate."""
    fits = [tile for tile in TILES if tile.columns < 2 * case.width + 256 and case.width <= 16 * tile.columns]
    return [tile for tile in fits if not (case.gate and tile.rows < 4) and case.rows // tile.rows < 1 << 15]


def replay_us(calls: Sequence[Callable[[], object]]) -> float:
    """Microseconds a call, all of them in one graph, one after the other."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())  # what the calls read may still be on its way
    with torch.cuda.stream(side):
        calls[0]()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    times = []
    for _ in range(_REPLAYS + 2):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end) * 1e3 / len(calls))
    return statistics.median(times[2:])


class OneRow:
    """One case with enough weights that none stays in the cache."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.bytes = case.rows * case.width * 2
        count = min(max(_COLD_BYTES // self.bytes, 4), 128)
        scale = case.width**-0.5
        self.weights = [_random(case.rows, case.width) * scale for _ in range(count)]
        self.x, self.residual, self.norm = _random(1, case.width), _random(1, case.width), _random(case.width)
        self.entry = Entry(self.residual, self.norm, 1e-5) if case.norm else None

    def fused(self, tile: Tile, pdl: bool) -> float:
        ways = (self.entry, self.case.gate, pdl, tile)
        return replay_us([partial(few_tokens, self.x, weight, None, *ways) for weight in self.weights])

    def torch_linear(self) -> float:
        """The product alone: no norm, no gate."""
        return replay_us([partial(F.linear, self.x, weight) for weight in self.weights])

    def error(self, tile: Tile, pdl: bool) -> float:
        x = self.x.double()
        if self.entry:
            total = (self.x + self.residual).double()
            x = total * (total.square().mean() + 1e-5).rsqrt() * self.norm.double()
        exact = x @ self.weights[0].double().T
        if self.case.gate:
            gate, up = exact.chunk(2, dim=1)
            exact = F.silu(gate) * up
        ours = few_tokens(self.x, self.weights[0], None, self.entry, self.case.gate, pdl, tile)[0].double()
        return float((ours - exact).norm() / exact.norm())


def _random(*shape: int) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.bfloat16, device="cuda")


def time_rows(sweep: bool) -> Iterator[dict[str, Any]]:
    for case in cases():
        bench = OneRow(case)
        plain = bench.torch_linear()
        chosen = choose_tile(1, case.rows, case.width)
        for tile in tiles_for(case) if sweep else [chosen]:
            us = bench.fused(tile, pdl=True)
            alone = bench.fused(tile, pdl=False) if tile == chosen else 0.0
            yield {
                "case": f"{case.model} {case.layer}",
                "weight": [case.rows, case.width],
                "tile": [tile.rows, tile.columns, tile.warps],
                "us": round(us, 2),
                "tb_s": round(bench.bytes / us / 1e6, 2),
                "us_without_pdl": round(alone, 2),
                "torch_us": round(plain, 2),
                "torch_tb_s": round(bench.bytes / plain / 1e6, 2),
                "error": round(bench.error(tile, pdl=True), 5),
            }
        del bench
        torch.cuda.empty_cache()


class Step:
    """A model of dummy weights and one decode step of a number of rows, each at the same position."""

    def __init__(self, name: str, ops: TritonOps, rows: int, position: int) -> None:
        shape = SHAPES[name]
        build = BuildContext(torch.bfloat16, torch.device("cuda"), ops, 1024)
        self.model = model_class(shape["architectures"][0])(shape, build)
        fill_dummy(self.model, 0)
        blocks = position // _BLOCK_SIZE + 1
        kv = self.model.kv_layers()
        size = (rows * blocks, kv[0].num_kv_heads, _BLOCK_SIZE, kv[0].head_dim)
        caches = [LayerCache(0, _random(*size), _random(*size)) for _ in kv]
        table = torch.arange(rows * blocks, dtype=torch.int32, device="cuda").view(rows, blocks)
        self.positions = torch.full((rows,), position, device="cuda")
        slots = table[:, position // _BLOCK_SIZE].long() * _BLOCK_SIZE + position % _BLOCK_SIZE
        batch = AttentionBatch(
            rows=torch.arange(rows, dtype=torch.int32, device="cuda"),
            query_start=torch.arange(rows + 1, dtype=torch.int32, device="cuda"),
            seq_lens=torch.full((rows,), position + 1, dtype=torch.int32, device="cuda"),
            block_tables=(table,),
            slots=(slots,),
            num_single=rows,
            max_query_len=1,
        )
        self.ids = torch.arange(rows, dtype=torch.int32, device="cuda")
        self.ctx = ForwardContext(ops, batch, caches)
        table_of_rows = torch.ones(rows, device="cuda")
        greedy = torch.zeros(rows, dtype=torch.int32, device="cuda")
        self.params = DrawParams(table_of_rows, self.positions, greedy)

    def __call__(self) -> object:
        hidden = self.model(ModelInputs(self.ids, self.positions), self.ctx)
        logits = self.model.logits(hidden, self.ctx)
        return self.ctx.ops.draw(logits, self.ctx.batch.rows, self.positions, self.params)


class PlainOps(TritonOps):
    """As it was before ops were joined: one row goes the way of many, nothing begins early."""

    def __init__(self) -> None:
        super().__init__()
        self._pdl = False
        self._one_row = False


def time_steps() -> Iterator[dict[str, Any]]:
    early = TritonOps()
    late = TritonOps()
    late._pdl = False
    kinds = {"fused, pdl": early, "fused": late, "apart": PlainOps(), "deterministic": TritonOps(deterministic=True)}
    for name in SHAPES:
        for rows in (1, 64):
            for kind, ops in kinds.items():
                if rows > 1 and kind == "apart":
                    continue
                step = Step(name, ops, rows, 200)
                us = replay_us([step] * 4)
                yield {"case": f"step {name}", "rows": rows, "kind": kind, "us": round(us, 1)}
                del step
                torch.cuda.empty_cache()


def time_draw() -> Iterator[dict[str, Any]]:
    ops = TritonOps()
    for lines, vocab in ((1, 49152), (1, 151936), (64, 151936), (256, 128256)):
        for random in (0, 1):
            logits = [_random(lines, vocab) for _ in range(4)]
            rows = torch.arange(lines, dtype=torch.int32, device="cuda")
            flags = torch.full((lines,), random, dtype=torch.int32, device="cuda")
            params = DrawParams(torch.full((lines,), 1.0, device="cuda"), rows.long(), flags)
            us = replay_us([partial(ops.draw, x, rows, rows, params) for x in logits])
            greedy = replay_us([lambda x=x: x.float().max(dim=-1) for x in logits])
            case = {"case": "draw", "lines": lines, "vocab": vocab, "random": random, "us": round(us, 1)}
            yield case | {"tb_s": round(lines * vocab * 2 / us / 1e6, 2), "torch_max_us": round(greedy, 1)}


FIXED = [
    Tiles(64, 32, 64, 4, 6),
    Tiles(64, 32, 128, 4, 4),
    Tiles(64, 64, 64, 4, 5),
    Tiles(64, 128, 64, 4, 4),
    Tiles(128, 128, 64, 8, 4),
    Tiles(128, 256, 64, 8, 3),
]


def time_fixed(sweep: bool) -> Iterator[dict[str, Any]]:
    for rows in (1, 16, 64, 256, 2048, 8192):
        for outputs, width in ((6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336)):
            x = _random(rows, width)
            weights = [_random(outputs, width) * width**-0.5 for _ in range(4)]
            plain = replay_us([partial(F.linear, x, weight) for weight in weights])
            for tiles in FIXED if sweep else [choose_tiles(rows, outputs, x.dtype)]:
                us = replay_us([partial(fixed_linear, x, weight, None, tiles=tiles) for weight in weights])
                same = torch.equal(
                    fixed_linear(x, weights[0], None, tiles=tiles)[:1], fixed_linear(x[:1], weights[0], None)
                )
                yield {
                    "case": "fixed",
                    "rows": rows,
                    "weight": [outputs, width],
                    "tiles": [tiles.rows, tiles.outputs, tiles.columns, tiles.warps, tiles.stages],
                    "us": round(us, 1),
                    "torch_us": round(plain, 1),
                    "tflop_s": round(2 * rows * outputs * width / us / 1e6, 1),
                    "same_bits_as_one_row": same,
                }


def compile_share(share: str) -> None:
    index, count = (int(part) for part in share.split("/"))
    work = []
    seen = set()
    for case in cases():
        for tile in tiles_for(case):
            taken = tile.rows // 2 if case.gate else tile.rows
            outputs = case.rows // 2 if case.gate else case.rows
            key = (case.width, case.norm, case.gate, tile, outputs % taken == 0, outputs % 16 == 0)
            if key not in seen:
                seen.add(key)
                work.append((case, tile, outputs, taken))
    for case, tile, outputs, taken in work[index::count]:
        kind = torch.bfloat16
        gemv.gemv.kernel.warmup(
            kind, kind, kind, kind, kind, kind, kind, 1e-5, outputs,
            WIDTH=case.width, ROWS=tile.rows, COLUMNS=tile.columns, EVEN=outputs % taken == 0, NORM=case.norm,
            GATE=case.gate, BIAS=False, PDL=True, num_warps=tile.warps, launch_pdl=True, grid=(1,),
        )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sweep", action="store_true")
    parser.add_argument("--only", default="rows,steps,draw,fixed")
    parser.add_argument("--compile", default="")
    options = parser.parse_args()
    if options.compile:
        compile_share(options.compile)
        return
    parts = {
        "rows": lambda: time_rows(options.sweep),
        "steps": time_steps,
        "draw": time_draw,
        "fixed": lambda: time_fixed(options.sweep),
    }
    print(json.dumps({"machine": describe_machine()}), flush=True)
    with torch.inference_mode():
        for name in options.only.split(","):
            for line in parts[name]():
                print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()

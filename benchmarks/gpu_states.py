"""Layers that keep a state, on a GPU: checks their kernels, times them beside the limits of memory and matrix units,
tries other tiles, and decodes with a whole model of dummy weights.

    python -m benchmarks.gpu_states [--out FILE] [--only check,decode,prefill,engine] [--quick]

One JSON line per result, to the terminal and to FILE. What does not hold is listed, and the script fails at its end.
Several processes compile the kernels first. `--quick` leaves out other tiles than those that are chosen.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.machine import describe_machine
from benchmarks.state_layers import MAMBA, MAMBA2, QWEN3_NEXT, SHAPES, Bench, LayerShape
from cadence.kernels.interface.state_ops import StateOps
from cadence.kernels.reference.states import ReferenceStateOps
from cadence.kernels.triton.states.states import TritonStateOps
from cadence.kernels.triton.states.tiles import DeltaChunks, HeadChunks, StateTiles, WalkTile
from tests.helpers.state_cases import Streams, Turn, conv_case, delta_case, head_scan_case, scan_case

BYTES_PER_SECOND, FLOPS = 4.2e12, 750e12  # what an H200 was seen to read, and to multiply in bfloat16
_REPLAYS = 7
_LEAST_LAUNCHES = 16  # of a graph that is timed
_MOST_BYTES = 3 << 30  # of states, of all layers that are timed
_COMPILERS = max(min((os.cpu_count() or 2) - 2, 14), 1)
SECTIONS = ("check", "decode", "prefill", "engine")

FORWARDS = [
    [Turn(1, 4), Turn(2, 7, 2, 1, 1), Turn(0, 0, padding=1)],
    [Turn(0, 1), Turn(2, 1, 2, 2), Turn(1, 1, 0, 3)],
    [Turn(1, 1), Turn(2, 1), Turn(0, 5, 1)],
    [Turn(0, 1), Turn(2, 130, 1, 2), Turn(1, 97)],
    [Turn(1, 0, padding=19), Turn(2, 18, 2), Turn(0, 64)],
    [Turn(2, 1), Turn(1, 1), Turn(0, 1)],
]
CASES = {
    "short_conv": partial(conv_case, channels=200),
    "scan": partial(scan_case, size=200, state=16),
    "scan, odd": partial(scan_case, size=37, state=5),
    "head_scan": partial(head_scan_case, heads=4, size=64, groups=1, state=128),
    "head_scan, wide": partial(head_scan_case, heads=2, size=128, groups=2, state=256),
    "head_scan, odd": head_scan_case,
    "delta_rule": partial(delta_case, key_heads=2, heads=4, key=128, value=128),
    "delta_rule, odd": delta_case,
}
CLOSE = {torch.float32: 3e-4, torch.bfloat16: 1.2e-2, torch.float16: 3e-3}  # of the whole, by its length


class Report:
    def __init__(self, path: Path | None) -> None:
        self._file = path.open("w") if path else None
        self.faults: list[str] = []

    def add(self, **line: Any) -> None:
        text = json.dumps(line)
        print(text, flush=True)
        if self._file:
            self._file.write(text + "\n")
            self._file.flush()

    def fault(self, what: str, problem: object) -> None:
        self.faults.append(what)
        self.add(fault=what, problem=str(problem)[-600:])


@dataclass(frozen=True)
class Job:
    """work(warm): with `warm`, only so much that all kernels are compiled."""

    section: str
    name: str
    work: Callable[[bool], dict[str, Any] | None]


def ops(**tiles: Any) -> TritonStateOps:
    return TritonStateOps(pdl=True, tiles=StateTiles(**tiles))


# ---- checks


def check_case(name: str, dtype: torch.dtype, tiles: StateTiles, warm: bool) -> dict[str, Any]:
    """Results and tables of forwards with prompts, single tokens and drafts, beside the reference."""
    case = CASES[name](dtype, device="cuda")
    ours, theirs = (Streams(case, dtype, num_rows=3, device="cuda") for _ in range(2))
    triton, plain, worst = TritonStateOps(pdl=True, tiles=tiles), ReferenceStateOps(), 0.0
    for turns in FORWARDS:
        ours.forward(triton, turns, 2)
        if not warm:
            theirs.forward(plain, turns, 2)
            pairs = [(ours.case.lasting(ours.tables), theirs.case.lasting(theirs.tables))]
            pairs += [(torch.stack(a), torch.stack(b)) for a, b in zip(ours.outs, theirs.outs, strict=True) if a]
            worst = max(worst, *(far(a, b) for a, b in pairs))
    assert worst < CLOSE[dtype], f"{worst} from the reference"
    return {"error": float(f"{worst:.2e}")}


def far(a: torch.Tensor, b: torch.Tensor) -> float:
    a, b = a.double(), b.double()
    assert a.isfinite().all()
    return float((a - b).norm() / b.norm().clamp(min=1e-9))


def check_bits(name: str, dtype: torch.dtype, warm: bool) -> None:
    """Deterministic results are those of one walk, in whatever pieces and with whatever drafts."""
    fixed = TritonStateOps(deterministic=True, pdl=True)
    streams = Streams(CASES[name](dtype, device="cuda"), dtype, num_rows=3, device="cuda")
    for turns in FORWARDS:
        streams.forward(fixed, turns, 1)
    streams.settle(fixed)
    if warm:
        streams.whole(fixed, 0)
    else:
        streams.check(fixed)


def check_large(shape: LayerShape, dtype: torch.dtype, warm: bool) -> dict[str, Any] | None:
    """Whole layers of the shapes that are timed: chunks beside the walk."""
    runs = [300, 65, 40]
    benches = [Bench(shape, runs, 1, dtype) for _ in range(2)]
    walked = TritonStateOps(deterministic=True, pdl=True)
    found = [bench.chain(each, 0) for bench, each in zip(benches, (ops(), walked), strict=True)]
    if warm:
        return None
    worst = max(far(*found), far(*(bench.tables[0].state for bench in benches)))
    assert worst < CLOSE[dtype], f"{worst} from the walk"
    return {"error": float(f"{worst:.2e}")}


def check_jobs() -> Iterator[Job]:
    small = StateTiles(few_tokens=1, head_chunks=replace(StateTiles().head_chunks, programs=64))  # several spans
    for name in CASES:
        for dtype in CLOSE:
            for kind, tiles in (("chosen", StateTiles()), ("spans", small)):
                if kind == "chosen" or not name.startswith(("short_conv", "scan")):
                    label = f"{name}, {dtype}, {kind}".replace("torch.", "")
                    yield Job("check", label, partial(check_case, name, dtype, tiles))
        yield Job("check", f"bits of {name}", partial(check_bits, name, torch.bfloat16))
    for shape in SHAPES:
        for dtype in (torch.bfloat16, torch.float32):
            label = f"{shape.name}, chunks beside walk, {dtype}".replace("torch.", "")
            yield Job("check", label, partial(check_large, shape, dtype))


# ---- times


def measure(call: Callable[[int], object], copies: int) -> float:
    """Median seconds of one call, back to back in a graph, each with the next layer."""
    launches = list(range(copies)) * max(-(-_LEAST_LAUNCHES // copies), 1)
    call(0)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for layer in launches:
            call(layer)
    graph.replay()
    times = []
    for _ in range(_REPLAYS):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) / len(launches) / 1e3)
    return statistics.median(times)


def time_layer(shape: LayerShape, lengths: list[int], what: str, chosen: StateOps, warm: bool) -> dict[str, Any] | None:
    """what: core, conv, norm or chain, which is all of them."""
    if warm and max(lengths) == 1:
        lengths = [1]
    copies = max(min(_MOST_BYTES // (len(lengths) * shape.state_bytes), shape.layers), 2)
    bench = Bench(shape, lengths, 1 if warm else copies)
    found = bench.given[0][:, : shape.width].contiguous()
    calls: dict[str, Callable[[int], object]] = {
        "core": lambda layer: bench.core(chosen, layer),
        "conv": lambda layer: bench.conv(chosen, layer),
        "norm": lambda layer: bench.finish(chosen, found),
        "chain": lambda layer: bench.chain(chosen, layer),
    }
    if warm:
        calls[what](0)
        return None
    seconds = measure(calls[what], len(bench.tables))
    line: dict[str, Any] = {"us": round(seconds * 1e6, 2)}
    if what in ("core", "chain"):
        moved = bench.core_bytes() if what == "core" else bench.chain_bytes()
        limits = {"bytes": moved / BYTES_PER_SECOND, "flops": sum(lengths) * shape.chunk_flops() / FLOPS}
        if max(lengths) == 1:
            del limits["flops"]
        line |= {f"{name}_limit_us": round(limit * 1e6, 2) for name, limit in limits.items()}
        line["share"] = round(max(limits.values()) / seconds, 3)
    return line


WALKS = tuple(
    WalkTile(*each) for each in ((16, 1), (16, 2), (16, 4), (32, 1), (32, 2), (32, 4), (64, 2), (64, 4), (64, 8))
)
CHANNEL_WALKS = tuple(WalkTile(*each, 4) for each in ((16, 1), (32, 1), (64, 1), (64, 2), (64, 4), (128, 2), (128, 4)))
WALK_FIELDS = {"head_scan": "heads", "scan": "channels", "delta_rule": "delta"}


def decode_jobs(quick: bool) -> Iterator[Job]:
    for shape in SHAPES:
        for batch in (1, 64, 256):
            runs = [1] * batch
            for what in ("core", "conv", "norm", "chain"):
                yield Job("decode", f"{shape.name} x {batch}, {what}", partial(time_layer, shape, runs, what, ops()))
            if quick:
                continue
            for tile in CHANNEL_WALKS if shape.kind == "scan" else WALKS:
                label = f"{shape.name} x {batch}, core, {tile.block} by {tile.warps} warps"
                chosen = ops(**{WALK_FIELDS[shape.kind]: tile})
                yield Job("decode", label, partial(time_layer, shape, runs, "core", chosen))
        few = [5] * 16
        yield Job("decode", f"{shape.name} x 16 runs of 5, core", partial(time_layer, shape, few, "core", ops()))


HEAD_CHUNKS = (  # chunk, block, warps, stages, programs
    *((64, 64, 4, stages, programs) for stages in (1, 2, 3) for programs in (264, 400, 640)),
    *((64, 32, 4, 2, programs) for programs in (264, 400, 640)),
    *((64, 64, 8, 2, programs) for programs in (132, 264, 640)),
    (64, 32, 4, 1, 400),
    (64, 32, 8, 2, 264),
)
DELTA_CHUNKS = (  # chunk, warps, block, warps of the walk, stages
    *((64, warps, 32, 4, 2) for warps in (4, 8)),
    *((64, 4, block, walk, stages) for block, walk, stages in ((16, 4, 2), (16, 4, 3), (32, 4, 1), (32, 4, 3))),
    *((64, 4, block, walk, stages) for block, walk, stages in ((64, 4, 1), (64, 4, 2), (64, 8, 2), (128, 8, 1))),
)
PROMPT_CHANNELS = ((8, 1, 4), (16, 1, 1), (16, 1, 4), (16, 1, 8), (32, 1, 2), (32, 1, 4), (64, 4, 4), (64, 2, 2))


def prefill_jobs(quick: bool) -> Iterator[Job]:
    for shape in SHAPES:
        for batch in (1, 8):
            runs, label = [2048] * batch, f"{shape.name}, {batch} x 2048"
            for what in ("core", "conv", "norm", "chain"):
                yield Job("prefill", f"{label}, {what}", partial(time_layer, shape, runs, what, ops()))
            fixed = TritonStateOps(deterministic=True, pdl=True)
            yield Job("prefill", f"{label}, core, deterministic", partial(time_layer, shape, runs, "core", fixed))
            tried: list[tuple[str, StateOps]] = []
            if shape is MAMBA2:
                tried = [(str(each), ops(head_chunks=HeadChunks(*each))) for each in HEAD_CHUNKS]
            elif shape is QWEN3_NEXT:
                tried = [(str(each), ops(delta_chunks=DeltaChunks(*each))) for each in DELTA_CHUNKS]
            elif shape is MAMBA:
                tried = [(str(each), ops(prompt_channels=WalkTile(*each))) for each in PROMPT_CHANNELS]
            for tile, chosen in [] if quick else tried:
                yield Job("prefill", f"{label}, core, {tile}", partial(time_layer, shape, runs, "core", chosen))
        ragged = [1] * 60 + [5, 700, 1300, 40]
        yield Job("prefill", f"{shape.name}, mixed, core", partial(time_layer, shape, ragged, "core", ops()))


def all_jobs(options: argparse.Namespace) -> list[Job]:
    jobs = [*check_jobs(), *decode_jobs(options.quick), *prefill_jobs(options.quick)]
    return [job for job in jobs if job.section in options.only.split(",")]


def compile_share(jobs: list[Job], share: int) -> None:
    for job in jobs[share::_COMPILERS]:
        with contextlib.suppress(Exception):  # the run itself says what failed
            job.work(True)


def compile_all(report: Report) -> None:
    """Several processes fill Triton's cache."""
    begun = time.perf_counter()
    command = [sys.executable, "-m", "benchmarks.gpu_states", *sys.argv[1:]]
    found = [subprocess.Popen([*command, "--compile", str(share)]) for share in range(_COMPILERS)]
    codes = [process.wait() for process in found]
    report.add(section="compile", processes=_COMPILERS, ended=codes, seconds=round(time.perf_counter() - begun, 1))


def run_jobs(jobs: list[Job], report: Report) -> None:
    for job in jobs:
        begun = time.perf_counter()
        try:
            found = job.work(False) or {}
            seconds = round(time.perf_counter() - begun, 2)
            report.add(section=job.section, name=job.name, **found, seconds=seconds)
        except Exception as problem:
            tried = job.name.endswith(")") or "warps" in job.name  # a tile that does not fit is no fault
            if tried:
                report.add(section=job.section, name=job.name, failed=str(problem)[-200:])
            else:
                report.fault(job.name, repr(problem))
        if job.section != "check":
            torch.cuda.empty_cache()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--only", default=",".join(SECTIONS))
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--compile", type=int, metavar="SHARE", help=argparse.SUPPRESS)
    options = parser.parse_args()
    jobs = all_jobs(options)
    with torch.inference_mode():
        if options.compile is not None:
            return compile_share(jobs, options.compile)
        report = Report(options.out)
        report.add(machine=describe_machine(), bytes_per_second=BYTES_PER_SECOND, flops=FLOPS)
        compile_all(report)
        run_jobs(jobs, report)
    gc.collect()
    torch.cuda.empty_cache()
    if "engine" in options.only.split(","):
        from benchmarks.gpu_state_engine import run_engine

        run_engine(report)
    report.add(faults=report.faults)
    if report.faults:
        raise SystemExit(f"{len(report.faults)} faults: {report.faults}")
    return None


if __name__ == "__main__":
    main()

"""Times the packed matrix products against the float32 ones, side by side; prints one JSON line per case.

    python -m benchmarks.cpu_linear [--rows 1,8,32,256,1024] [--kinds Q4_1,BF16] [--isa auto] [--threads 2]

Shapes are SmolLM2-135M's. With one row the weights cycle through copies larger than the caches, as the layers of a
model do, in large pages as those of a model, and `share` is the bytes read per second over what a plain loop reads on
the same footprint in such pages; with many rows it
is the multiplications per second over the peak of the machine's integer dot product (x86 without one: of products of
pairs added up in 16 bits). Both limits are taken in turn with
the products.
Times are the least of several rounds. With --threads 1 they are the thread's own CPU time, which says something even on
a machine that others use.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import subprocess
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

from benchmarks.machine import describe_machine
from cadence.device.calls import Calls
from cadence.kernels.cpu.ops import CpuOps
from cadence.kernels.cpu.packed.weights import PackedRows, PackedWeight
from cadence.kernels.cpu.runtime.memory import PackedMemory
from cadence.models.quant.block_kinds import block_size
from tests.helpers.packing import pack_bf16, pack_f16, pack_f32, pack_gguf, packed_ops, packing

SHAPES = ((960, 576), (576, 576), (3072, 576), (576, 1536), (49152, 576))  # (out, in)
_FOOTPRINT = 96 << 20  # bytes of weights cycled through: more than the caches hold
_BANDWIDTH_C = """
#include <stdint.h>
typedef uint64_t v __attribute__((vector_size(64)));
/* Reads n bytes (a multiple of 1024) with all threads. */
uint64_t read_all(const char *p, int64_t n) {
    uint64_t total = 0;
#pragma omp parallel for reduction(^ : total)
    for (int64_t part = 0; part < 64; part++) {
        v a = {0}, b = {0}, c = {0}, d = {0};
        for (const v *q = (const v *)(p + n / 64 * part), *e = (const v *)(p + n / 64 * (part + 1)); q < e; q += 4)
            a ^= q[0], b ^= q[1], c ^= q[2], d ^= q[3];
        a ^= b ^ c ^ d;
        for (int i = 0; i < 8; i++) total ^= a[i];
    }
    return total;
}
/* n dependent steps of ten independent chains per thread; returns multiplications done by one thread. */
#if defined(__aarch64__) && defined(__ARM_FEATURE_DOTPROD)
#include <arm_neon.h>
#define CHAIN(i) "sdot v" #i ".4s, v20.16b, v21.4b[1]\\n"
int64_t dot_peak(int64_t n) {
#pragma omp parallel
    for (int64_t i = 0; i < n; i++)
        __asm__ volatile(CHAIN(0) CHAIN(1) CHAIN(2) CHAIN(3) CHAIN(4) CHAIN(5) CHAIN(6) CHAIN(7) CHAIN(8) CHAIN(9)::
            : "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8", "v9");
    return n * 160;
}
#elif defined(__AVX512VNNI__)
#include <immintrin.h>
#define CHAIN(i) "vpdpbusd %%zmm30, %%zmm31, %%zmm" #i "\\n"
int64_t dot_peak(int64_t n) {
#pragma omp parallel
    for (int64_t i = 0; i < n; i++)
        __asm__ volatile(CHAIN(0) CHAIN(1) CHAIN(2) CHAIN(3) CHAIN(4) CHAIN(5) CHAIN(6) CHAIN(7) CHAIN(8) CHAIN(9)::
            : "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9");
    return n * 640;
}
#elif defined(__AVX512BW__) || defined(__AVX2__)
/* Products of pairs of bytes, added up in 16 bits. */
#ifdef __AVX512BW__
#define R(i) "%%zmm" #i
enum { BYTES = 64 };
#else
#define R(i) "%%ymm" #i
enum { BYTES = 32 };
#endif
#define CHAIN(i) "vpmaddubsw " R(14) ", " R(15) ", " R(13) "\\n vpaddw " R(13) ", " R(i) ", " R(i) "\\n"
int64_t dot_peak(int64_t n) {
#pragma omp parallel
    for (int64_t i = 0; i < n; i++)
        __asm__ volatile(CHAIN(0) CHAIN(1) CHAIN(2) CHAIN(3) CHAIN(4) CHAIN(5) CHAIN(6) CHAIN(7) CHAIN(8) CHAIN(9)::
            : "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm13");
    return n * 10 * BYTES;
}
#else
int64_t dot_peak(int64_t n) { return 0; }
#endif
"""


class Limits:
    """What the machine reaches in plain loops."""

    def __init__(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            source, built = Path(folder) / "limits.c", Path(folder) / "limits.so"
            source.write_text(_BANDWIDTH_C)
            flags = ["-O3", "-march=native", "-fopenmp", "-shared", "-fPIC", "-w"]
            subprocess.run(["cc", *flags, str(source), "-o", str(built)], check=True)
            self._c = ctypes.CDLL(str(built))
        self._c.read_all.argtypes, self._c.read_all.restype = [ctypes.c_void_p, ctypes.c_int64], ctypes.c_uint64
        self._c.dot_peak.argtypes, self._c.dot_peak.restype = [ctypes.c_int64], ctypes.c_int64
        self._memory = PackedMemory().take(_FOOTPRINT).fill_(1)

    def bandwidth(self, footprint: int = _FOOTPRINT) -> float:
        """Bytes per second, where so many are read again and again: caches may hold a part of them."""
        footprint = footprint // 65536 * 65536
        if self._memory.numel() < footprint:
            self._memory = PackedMemory().take(footprint).fill_(1)
        return footprint / best_of(lambda: self._c.read_all(self._memory.data_ptr(), footprint), 5)

    def dot_peak(self) -> float:
        """Multiplications per second of all threads, int8; 0 where there is no loop for this machine."""
        done = self._c.dot_peak(1)
        steps = 100_000
        return torch.get_num_threads() * done * steps / best_of(lambda: self._c.dot_peak(steps), 9)


def best_of(call: Callable[[], object], rounds: int) -> float:
    clock = time.thread_time if torch.get_num_threads() == 1 else time.perf_counter
    best = float("inf")
    for _ in range(rounds):
        start = clock()
        call()
        best = min(best, clock() - start)
    return best


def random_weight(kind: str, out_dim: int, in_dim: int) -> PackedWeight:
    if kind in ("F32", "BF16", "F16"):
        tensor = torch.randn(out_dim, in_dim) * 0.02
        return {"F32": pack_f32, "BF16": pack_bf16, "F16": pack_f16}[kind](tensor)
    values, num_bytes = block_size(kind)
    blocks = torch.randint(0, 64, (out_dim * in_dim // values, num_bytes), dtype=torch.uint8)
    one = torch.ones(1).view(torch.uint8)  # scales of numbers, none of them below the normal ones
    if kind == "MXFP4":
        blocks[:, 0] = 127
    if kind in ("NF4", "FP4"):
        blocks[:, :4] = one
    if kind == "T4_F":
        blocks[:, 16:24] = one.repeat(2)
    if kind == "F8":
        blocks[:, :4] = one
        blocks[:, 4:] = (torch.randn(len(blocks), 32) * 90).clamp(-448, 448).to(torch.float8_e4m3fn).view(torch.uint8)
    return pack_gguf(kind, blocks, out_dim, in_dim)


def cycle(calls: list[Callable[[], object]], inner: int) -> Callable[[], None]:
    """One call runs `inner` of the calls, going on where it stopped."""
    state = [0]

    def run() -> None:
        for _ in range(inner):
            calls[state[0] % len(calls)]()
            state[0] += 1

    return run


class Case:
    def __init__(self, kind: str, shape: tuple[int, int], rows: int, isa: str) -> None:
        self.kind, self.rows, (self.out_dim, self.in_dim) = kind, rows, shape
        calls = Calls(torch.get_num_threads())
        plain = CpuOps(calls)
        ops = packed_ops(isa, calls.pool)
        dtype = torch.bfloat16 if kind == "BF16" else torch.float32  # as models have it beside such weights
        self._x, self._y = torch.randn(rows, self.in_dim, dtype=dtype), torch.empty(rows, self.out_dim, dtype=dtype)
        first = random_weight(kind, *shape)
        self.nbytes = first.data.numel()
        copies = -(-_FOOTPRINT // self.nbytes) if rows == 1 else 1
        memory = PackedMemory()
        copied = [memory.take(self.nbytes).copy_(first.data) for _ in range(copies)]
        weights = [packing().weight(first.kind, *shape, data) for data in copied]
        floats = [torch.randn(shape) for _ in range(min(copies, -(-_FOOTPRINT // (4 * self.out_dim * self.in_dim))))]
        self._inner = max(1, min(20, 2_000_000_000 // (rows * self.out_dim * self.in_dim * 40)))
        self._stacks = [PackedRows([weight]) for weight in weights]
        jobs = [ops.job(self._y, self._x, stack, None) for stack in self._stacks]
        self._packed = cycle([partial(ops.run, job) for job in jobs], self._inner)
        wide = self._x.float()
        self._plain = cycle([partial(plain.linear, wide, weight, None) for weight in floats], self._inner)

    def run(self, limits: Limits, rounds: int) -> dict[str, object]:
        ours = theirs = float("inf")
        bandwidth = peak = 0.0
        for _ in range(rounds):
            ours = min(ours, best_of(self._packed, 3) / self._inner)
            theirs = min(theirs, best_of(self._plain, 3) / self._inner)
            bandwidth = max(bandwidth, limits.bandwidth()) if self.rows == 1 else 0.0
            peak = max(peak, limits.dot_peak()) if self.rows > 1 else 0.0
        work = self.rows * self.out_dim * self.in_dim
        share = self.nbytes / ours / bandwidth if self.rows == 1 else (work / ours / peak if peak else 0.0)
        return {
            "kind": self.kind,
            "shape": f"{self.out_dim}x{self.in_dim}",
            "rows": self.rows,
            "us": round(ours * 1e6, 1),
            "f32_us": round(theirs * 1e6, 1),
            "speedup": round(theirs / ours, 2),
            "GB/s": round(self.nbytes / ours / 1e9, 1),
            "GMAC/s": round(work / ours / 1e9, 1),
            "share": round(share, 2),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", default="1,8,32,256,1024")
    parser.add_argument("--kinds", default="Q4_1,Q8_0,BF16")
    parser.add_argument("--shapes", default=",".join(f"{out}x{width}" for out, width in SHAPES))
    parser.add_argument("--isa", default="auto")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    limits = Limits()
    print(json.dumps({**describe_machine(), "isa": packed_ops(args.isa).isa}))
    print(json.dumps({"read GB/s": limits.bandwidth() / 1e9, "dot GMAC/s": limits.dot_peak() / 1e9}))
    for kind in args.kinds.split(","):
        for shape in args.shapes.split(","):
            out_dim, in_dim = map(int, shape.split("x"))
            for rows in map(int, args.rows.split(",")):
                case = Case(kind, (out_dim, in_dim), rows, args.isa)
                print(json.dumps(case.run(limits, args.rounds)), flush=True)


if __name__ == "__main__":
    main()

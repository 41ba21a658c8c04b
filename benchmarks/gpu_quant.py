"""Products with matrices of few bits on a GPU, beside those of 16 bits, by the shapes of a layer. One JSON line each.

    python -m benchmarks.gpu_quant [--rows 1,8,16,64,256,1024] [--kinds fp8,int8] [--blocks Q4_K,Q6_K] [--tiles]
    python -m benchmarks.gpu_quant --experts 1,64,512 [--kinds fp8,int4]

Each is captured with 32 different matrices, so that none lies in the cache; microseconds of one product. --tiles: those
of `wide`, and of blocks those of one row, one by one. --experts: products of so many tokens with a layer of experts,
alone; GB/s counts every matrix that is taken once.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import torch

from cadence.kernels.interface.scaled_numbers import ScaledNumbers
from cadence.kernels.triton.experts.expert_stacks import DenseStack, FewBitsStack, MatrixStack
from cadence.kernels.triton.experts.experts import TritonExperts
from cadence.kernels.triton.linear.few_rows import FewTile
from cadence.kernels.triton.lowbit.block_matrix import BlockMatrix, products_of
from cadence.kernels.triton.lowbit.block_planes import FORMS, Planes
from cadence.kernels.triton.lowbit.checkpoint_numbers import of_numbers
from cadence.kernels.triton.lowbit.eight_rows import linear_eight
from cadence.kernels.triton.lowbit.few_bits import Stored, as_fp8, as_int4, as_int8
from cadence.kernels.triton.lowbit.few_bits_gemv import OneTile, one_token
from cadence.kernels.triton.lowbit.few_bits_matrix import FewBitsMatrix
from cadence.kernels.triton.lowbit.few_bits_rows import widened
from cadence.kernels.triton.lowbit.few_bits_wide import linear_wide
from cadence.kernels.triton.lowbit.quantized_rows import normed_rows, quantized_rows
from cadence.kernels.triton.lowbit.span_launch import KINDS, Spans
from cadence.kernels.triton.ops import TritonOps

SHAPES = {"qkv": (6144, 4096), "gate_up": (28672, 4096), "down": (4096, 14336)}  # of Llama 3.1 8B
MAKERS = {
    "fp8": as_fp8,
    "int8": as_int8,
    "int4": as_int4,
    "int4 64": lambda weight: as_int4(weight).regrouped(64),
    "nf4": lambda weight: of_table(weight),
    "fp8 block": lambda weight: in_blocks(as_fp8(weight)),
}
COMMON = ("Q4_K", "Q5_K", "Q6_K", "Q5_0", "Q8_0", "IQ4_XS", "IQ3_S", "IQ2_XXS", "TQ2_0", "MXFP4", "FP4_16")
TILES = [
    FewTile(rows, outputs, columns, warps, stages)
    for rows in (8, 16, 64)
    for outputs, warps in ((16, 1), (32, 2), (64, 2), (64, 4), (128, 4), (128, 8))
    for columns in (128,)
    for stages in (3, 4)
]
EIGHT_TILES = [
    FewTile(rows, outputs, columns, 4, stages, terms)
    for rows in (16, 32, 64, 128)
    for outputs in (64, 128)
    for columns in (128, 256)
    for stages in (3, 5)
    for terms in (1, 4)
]
SPAN_TILES = [
    OneTile(rows, columns, parts)
    for rows in (2, 4, 8)
    for columns in (2048, 4096, 8192, 16384)
    for parts in (1, 2, 4, 8)
    if rows * columns <= 32768
]
ONE_TILES = [OneTile(rows, columns, parts) for rows in (4, 8) for columns in (2048, 4096, 8192) for parts in (1, 2, 4)]
BYTES = 1 << 30  # of the matrices that are gone through
BYTES_EACH = {"bf16": 2.0, "int4": 0.53, "int4 64": 0.56, "nf4": 0.56}  # of a number; others have one


def microseconds(work: Callable[[int], object], count: int) -> float:
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        work(0)
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph, stream=stream):
            for index in range(count):
                work(index)
    times = []
    for _ in range(4):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end) * 1e3 / count)
    return round(min(times), 2)


def in_blocks(stored: Stored) -> Stored:
    """A scale for 128 columns, as checkpoints of that kind have it."""
    return replace(stored, scales=stored.scales.expand(-1, stored.cols // 128).contiguous())


def of_table(weight: torch.Tensor) -> Stored:
    """Any codes of a table, with a scale for 64 columns, as bitsandbytes has them."""
    scales = weight.view(weight.shape[0], -1, 64).abs().amax(dim=2).float()
    codes = torch.randint(0, 16, weight.shape, dtype=torch.uint8, device=weight.device)
    found = of_numbers(ScaledNumbers(codes, scales, bits=4, table=torch.linspace(-1, 1, 16)), weight.device)
    assert isinstance(found, Stored)
    return found


def random_planes(kind: str, rows: int, cols: int) -> Planes:
    """Any bits: how long a product takes does not depend on them."""
    form = FORMS[kind]
    planes = []
    for start, stop, dtype in form.fields:
        count = rows * cols // form.block * (stop - start)
        data = torch.randint(0, 256, (count,), dtype=torch.uint8, device="cuda")
        planes.append(data.view(dtype).view(rows, -1))
    return Planes(kind, tuple(planes), torch.zeros(1 << 14, dtype=torch.int8, device="cuda"), cols)


def measure_blocks(name: str, kinds: list[str], rows_list: list[int], tiles: bool) -> None:
    """Products from the blocks of files."""
    outputs, width = SHAPES[name]
    for kind in kinds:
        num_bytes = outputs * width // FORMS[kind].block * FORMS[kind].num_bytes
        stored = [random_planes(kind, outputs, width) for _ in range(max(4, BYTES // num_bytes))]
        for rows in rows_list:
            x = torch.randn(rows, width, dtype=torch.bfloat16, device="cuda")
            line = {"matrix": name, "rows": rows, "kind": kind, "bytes": num_bytes, **block_ways(stored, x)}
            print(json.dumps(line), flush=True)
            if tiles and rows == 1 and kind in KINDS:
                sweep_spans(line, x, stored)


def sweep_spans(line: dict[str, object], x: torch.Tensor, stored: list[Planes]) -> None:
    """The fastest tiles of one row; several parts are for those that hold all columns."""
    found = []
    for tile in SPAN_TILES:
        if tile.columns >= 2 * max(x.shape[1], 2048) or (tile.parts > 1 and tile.columns < x.shape[1]):
            continue

        def product(index: int, tile: OneTile = tile) -> torch.Tensor:
            return Spans(stored[index]).one_row(x, None, None, "", True, tile)[0]

        try:
            found.append((microseconds(product, len(stored)), str(tile)))
        except Exception as error:
            print("#", tile, str(error)[:80])
    for took, name in sorted(found)[:4]:
        print(json.dumps({**line, "us": took, "tile": name}), flush=True)


def block_ways(stored: list[Planes], x: torch.Tensor) -> dict[str, float]:
    """Microseconds of the product that is chosen, and of others."""
    matrices = [BlockMatrix(each, torch.bfloat16, False, True) for each in stored]
    found = {"us": microseconds(lambda index: matrices[index].linear(x, None), len(stored))}
    if x.shape[0] > 1:
        tile = products_of(stored[0]).choose(x.shape[0], x.dtype, 1)
        found["some_rows"] = microseconds(
            lambda index: products_of(stored[index]).some_rows(x, None, tile, True), len(stored)
        )
        found["widened"] = microseconds(lambda index: matrices[index]._widened(x, None), 4)
    return found


def fused_ways(rows: int) -> dict[str, float]:
    ops, kind = TritonOps(), torch.float8_e4m3fn
    stream = torch.randn(2, rows, 4096, dtype=torch.bfloat16, device="cuda")
    norm = torch.ones(4096, dtype=torch.bfloat16, device="cuda"), 1e-5
    both = torch.randn(rows, 28672, dtype=torch.bfloat16, device="cuda")

    def norm_apart(index: int) -> object:
        return quantized_rows(ops.add_rms_norm(stream[0], stream[1], *norm)[0], kind, True)

    return {
        "norm": microseconds(lambda index: normed_rows((stream[0], stream[1]), norm, kind, True), 32),
        "norm, then rounded": microseconds(norm_apart, 32),
        "gate": microseconds(lambda index: quantized_rows(both, kind, True, "silu"), 32),
        "gate, then rounded": microseconds(lambda index: quantized_rows(ops.silu_mul(both), kind, True), 32),
    }


def measure_fused(rows_list: list[int]) -> None:
    """Activations in eight bits, by a norm or gate that rounds what it makes, and by a kernel after it."""
    for rows in rows_list:
        print(json.dumps({"rows": rows, "kind": "fp8 activations", **fused_ways(rows)}), flush=True)


def copies(stored: Stored, count: int) -> list[Stored]:
    return [replace(stored, values=stored.values.clone(), scales=stored.scales.clone()) for _ in range(count)]


def measure(name: str, kinds: list[str], rows_list: list[int], tiles: bool) -> None:
    outputs, width = SHAPES[name]
    ops = TritonOps()
    weight = torch.randn(outputs, width, dtype=torch.bfloat16, device="cuda") / width**0.5
    count = max(4, BYTES // weight.nbytes)
    plain = [weight.clone() for _ in range(count)]
    xs = {rows: torch.randn(rows, width, dtype=torch.bfloat16, device="cuda") for rows in rows_list}
    for rows, x in xs.items():
        took = microseconds(lambda index, x=x: ops.linear(x, plain[index], None), count)
        print(json.dumps({"matrix": name, "rows": rows, "kind": "bf16", "us": took}), flush=True)
    for kind in kinds:
        stored = copies(MAKERS[kind](weight), count)
        for rows, x in xs.items():
            line = {"matrix": name, "rows": rows, "kind": kind, **ways(stored, x)}
            print(json.dumps(line), flush=True)
            if tiles and rows <= 128:
                sweep(line, x, stored)


def ways(stored: list[Stored], x: torch.Tensor) -> dict[str, float]:
    """Microseconds of the product that is chosen, and of others."""
    rows, count = x.shape[0], len(stored)
    matrices = [FewBitsMatrix(each, torch.bfloat16, False, True) for each in stored]
    found = {"us": microseconds(lambda index: matrices[index].linear(x, None), count)}
    if rows > 1:
        found["wide"] = microseconds(lambda index: linear_wide(x, stored[index], None, True), count)
    if rows >= 64:
        dense = torch.nn.functional.linear
        found["widened"] = microseconds(lambda index: dense(x, widened(stored[index], torch.bfloat16)), min(count, 4))
        if stored[0].values.dtype is torch.float8_e4m3fn and stored[0].group == stored[0].cols:
            found["scaled"] = microseconds(
                lambda index: matrices[index]._scaled(quantized_rows(x, torch.float8_e4m3fn, True), None), count
            )
    return found


def sweep(line: dict[str, object], x: torch.Tensor, stored: list[Stored]) -> None:
    """The fastest tiles."""
    found, rows = [], x.shape[0]
    has_bytes = not stored[0].is_four
    quants = quantized_rows(x, stored[0].values.dtype, True) if not stored[0].is_four else (x, x)
    is_one = rows == 1 and stored[0].is_four

    def product(index: int, tile: FewTile | OneTile) -> torch.Tensor:
        each = stored[index]
        if isinstance(tile, OneTile):
            return one_token(x, each, None, None, "", True, tile)[0]
        if has_bytes:
            return linear_eight(quants, each, None, x.dtype, tile, True)
        return linear_wide(x, each, None, True, replace(tile, columns=min(tile.columns, each.group)))

    for tile in ONE_TILES if is_one else EIGHT_TILES if has_bytes else TILES:
        if not is_one and (tile.rows >= 2 * max(rows, 16) or tile.rows < min(rows, 64)):
            continue
        try:
            found.append((microseconds(lambda index, tile=tile: product(index, tile), len(stored)), str(tile)))
        except Exception as error:
            print("#", tile, str(error)[:80])
    for took, name in sorted(found)[:4]:
        print(json.dumps({**line, "us": took, "tile": name}), flush=True)


class ExpertLayer(NamedTuple):
    hidden: int
    width: int
    count: int
    top_k: int


QWEN3_30B = ExpertLayer(2048, 768, 128, 8)


def measure_experts(shape: ExpertLayer, kinds: list[str], tokens_list: list[int]) -> None:
    """Two layers in turn: one is more than any cache holds."""
    gates = (TritonOps().silu_mul, TritonOps().gelu_tanh_mul)
    for kind in ["bf16", *kinds]:
        layers = [TritonExperts(expert_stacks(shape, kind), 0, gates) for _ in range(2)]
        for tokens in tokens_list:
            print(json.dumps({"kind": kind, **expert_product(layers, shape, kind, tokens)}), flush=True)


def expert_product(layers: list[TritonExperts], shape: ExpertLayer, kind: str, tokens: int) -> dict[str, object]:
    x = torch.randn(tokens, shape.hidden, dtype=torch.bfloat16, device="cuda")
    ids = torch.rand(tokens, shape.count, device="cuda").argsort(dim=1)[:, : shape.top_k].to(torch.int32).contiguous()
    shares = torch.full((tokens, shape.top_k), 1 / shape.top_k, device="cuda")
    taken = ids.unique().numel()
    took = microseconds(lambda index: layers[index % 2].product(x, (ids, shares), False), 8)
    weights = 3 * shape.width * shape.hidden * taken * BYTES_EACH.get(kind, 1.0)
    return {
        "experts": shape._asdict(),
        "tokens": tokens,
        "us": took,
        "taken": taken,
        "GB/s": round(weights / took / 1e3),
    }


def expert_stacks(shape: ExpertLayer, kind: str) -> tuple[MatrixStack, MatrixStack]:
    found: list[MatrixStack] = []
    for outputs, width in ((2 * shape.width, shape.hidden), (shape.hidden, shape.width)):
        weight = torch.randn(shape.count, outputs, width, dtype=torch.bfloat16, device="cuda") / width**0.5
        found.append(DenseStack(weight) if kind == "bf16" else FewBitsStack([MAKERS[kind](each) for each in weight]))
    return found[0], found[1]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", default="1,8,16,64,256,1024")
    parser.add_argument("--matrices", default=",".join(SHAPES))
    parser.add_argument("--kinds", default=",".join(MAKERS))
    parser.add_argument("--blocks", default=",".join(COMMON), help="types of GGUF files; all = every one")
    parser.add_argument("--tiles", action="store_true")
    parser.add_argument("--experts", default="", help="numbers of tokens")
    args = parser.parse_args()
    if args.experts:
        kinds, tokens = args.kinds.split(","), [int(count) for count in args.experts.split(",")]
        return measure_experts(QWEN3_30B, kinds, tokens)
    rows_list = [int(rows) for rows in args.rows.split(",")]
    blocks = list(FORMS) if args.blocks == "all" else [kind for kind in args.blocks.split(",") if kind]
    for name in args.matrices.split(","):
        measure(name, [kind for kind in args.kinds.split(",") if kind], rows_list, args.tiles)
        measure_blocks(name, blocks, rows_list, args.tiles)
    measure_fused(rows_list)


if __name__ == "__main__":
    main()

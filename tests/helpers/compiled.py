"""Kernels of caches compiled for a GPU that need not be here: what Triton or ptxas refuses shows without one."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

POINTERS = {
    "bfloat16": "*bf16",
    "float32": "*fp32",
    "int8": "*i8",
    "float8_e4m3fn": "*fp8e4nv",
    "float8_e5m2": "*fp8e5",
}
_COMMON = {"HEADS": 32, "KV_HEADS": 8, "GROUP": 4, "GROUP_PAD": 4, "BLOCK_SIZE": 16, "WINDOW": 0, "SOFTCAP": False}


def compile_kernels(cache_dtypes: list[str]) -> None:
    compiled_by("tests.helpers.compiled", cache_dtypes)


def compiled_by(module: str, arguments: list[str]) -> None:
    """In a process of its own: this one may have chosen Triton's interpreter."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]


def compile_for_gpu(kernel: Any, types: dict[str, str], constants: dict[str, Any], options: dict[str, Any]) -> Any:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    kernel = kernel.kernel if hasattr(kernel, "kernel") else kernel
    signature = {name: "constexpr" if name in constants else types.get(name, "i32") for name in kernel.arg_names}
    whole = {(i,): [["tt.divisibility", 16]] for i, kind in enumerate(signature.values()) if kind not in _UNALIGNED}
    source = ASTSource(kernel, signature, constants, whole)
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)


_UNALIGNED = ("constexpr", "fp32")
_FLOATS = dict.fromkeys(("scale", "softcap", "eps", "k_fixed", "v_fixed"), "fp32")
_WORDS = dict.fromkeys(("rows_ptr", "start_ptr", "lens_ptr", "table_ptr", "arrived_ptr"), "*i32")


def _main(cache_dtypes: list[str]) -> None:
    from cadence.kernels.triton import attention_prefill, attention_split, elementwise, heads
    from cadence.kernels.triton.attention_prefill import choose_prefill_tile

    for cache in cache_dtypes:
        size = 2 if cache == "bfloat16" else 1
        for dtype, dim in (("bfloat16", 128), ("bfloat16", 64), ("bfloat16", 256), ("float32", 64)):
            model, kept = POINTERS[dtype], POINTERS[cache if size == 1 else dtype]
            types = {**_FLOATS, **_WORDS, "k_ptr": kept, "v_ptr": kept, "q_ptr": model, "out_ptr": model}
            types |= {"part_ptr": "*fp32", "level_ptr": "*fp32"}
            constants = {**_COMMON, "DIM": dim, "DIM_PAD": dim, "PRECISION": "tf32x3" if dtype == "float32" else "tf32"}
            rows = 8 if size == 1 else 16
            split = {"QUERIES": 1, "ROWS": rows, "KEYS": 64, "SPLITS": 2, "SINGLE": True, "WHOLE": 512, "PDL": True}
            options = {"num_warps": 2 if size == 2 else 1, "num_stages": 3 if size == 2 else 2, "launch_pdl": True}
            found = [compile_for_gpu(attention_split._attend, types, constants | split, options)]
            tile = choose_prefill_tile(_shape(dim), _empty(dtype))
            prefill = {"BLOCK_Q": tile.rows // 4, "KEYS": tile.keys, "PDL": True}
            options = {"num_warps": tile.warps, "num_stages": tile.stages, "launch_pdl": True}
            found.append(compile_for_gpu(attention_prefill._attend, types, constants | prefill, options))
            types |= {"k_ptr": model, "v_ptr": model, "k_cache_ptr": kept, "v_cache_ptr": kept, "slots_ptr": "*i64"}
            types |= {"positions_ptr": "*i64", "cos_sin_ptr": "*fp32", "q_norm_ptr": model, "k_norm_ptr": model}
            write = {"HEADS": 8, "HEADS_PAD": 8, "DIM": dim, "DIM_PAD": dim, "BLOCK_SIZE": 16}
            found.append(compile_for_gpu(elementwise.write_kv, types, write, {}))
            fused = {"Q_HEADS": 32, "K_HEADS": 8, "HEADS": 2, "BLOCK_SIZE": 16, "DIM": dim, "HALF": dim // 2}
            fused |= {"HALF_PAD": dim // 2, "REST_PAD": 1, "NORM": False, "PDL": True, "AHEAD": 17, "THREADS": 32}
            found.append(compile_for_gpu(heads.rope_write_kv, types, fused, {"num_warps": 1, "launch_pdl": True}))
            shared = [kernel.metadata.shared for kernel in found]
            assert max(shared) < 227 * 1024, (cache, dtype, dim, shared)  # what a program may have there
            print(cache, dtype, dim, "bytes of shared memory", shared, flush=True)


def _shape(dim: int) -> Any:
    from cadence.kernels.interface.attention_batch import AttentionShape

    return AttentionShape(32, 8, dim, 1.0)


def _empty(dtype: str) -> Any:
    import torch

    return torch.empty(0, dtype=getattr(torch, dtype))


if __name__ == "__main__":
    _main(sys.argv[1:])

"""Kernels of caches, compiled for a GPU that need not be here, for every type of cache."""

from __future__ import annotations

from functools import partial
from typing import Any

from tests.helpers.compiled import POINTERS, compile_for_gpu

_COMMON = {"HEADS": 32, "KV_HEADS": 8, "GROUP": 4, "GROUP_PAD": 4, "BLOCK_SIZE": 16, "WINDOW": 0, "SOFTCAP": False}
_COMMON |= {"CHUNK": 0, "BOTH": False, "REACH": 0}
_SEEN = {"WINDOW": 65, "BOTH": True, "REACH": 128}  # both ways, within a window, with a bias
_FLOATS = dict.fromkeys(("scale", "softcap", "eps", "k_fixed", "v_fixed"), "fp32")
_WORDS = dict.fromkeys(("rows_ptr", "start_ptr", "lens_ptr", "table_ptr", "arrived_ptr"), "*i32")
_MOST_SHARED = 227 * 1024  # bytes of shared memory that a program may have
_CACHES = ("int8", "float8_e4m3fn", "float8_e5m2", "bfloat16")
_MODELS = (("bfloat16", 128), ("bfloat16", 64), ("bfloat16", 256), ("float32", 64))


def _attention_types(cache: str, dtype: str) -> dict[str, str]:
    model, kept = POINTERS[dtype], _kept(cache, dtype)
    types = {**_FLOATS, **_WORDS, "k_ptr": kept, "v_ptr": kept, "q_ptr": model, "out_ptr": model}
    return types | {"part_ptr": "*fp32", "level_ptr": "*fp32", "bias_ptr": "*fp32"}


def _kept(cache: str, dtype: str) -> str:
    return POINTERS[dtype if cache == "bfloat16" else cache]


def _constants(dtype: str, dim: int) -> dict[str, Any]:
    return {**_COMMON, "DIM": dim, "DIM_PAD": dim, "PRECISION": "tf32x3" if dtype == "float32" else "tf32"}


def _check(kernel: Any, types: dict[str, str], constants: dict[str, Any], options: dict[str, Any]) -> None:
    assert compile_for_gpu(kernel, types, constants, options).metadata.shared < _MOST_SHARED


def _split(cache: str, dtype: str, dim: int, **seen: Any) -> None:
    from cadence.kernels.triton.attention.attention_split import _attend

    size = 2 if cache == "bfloat16" else 1
    rows = 8 if size == 1 else 16
    split = {"QUERIES": 1, "ROWS": rows, "KEYS": 64, "SPLITS": 2, "SINGLE": True, "WHOLE": 512, "PDL": True}
    options = {"num_warps": 2 if size == 2 else 1, "num_stages": 3 if size == 2 else 2, "launch_pdl": True}
    _check(_attend, _attention_types(cache, dtype), _constants(dtype, dim) | split | seen, options)


def _prefill(cache: str, dtype: str, dim: int, **seen: Any) -> None:
    import torch

    from cadence.kernels.interface.attention_batch import AttentionShape
    from cadence.kernels.triton.attention.attention_prefill import _attend, choose_prefill_tile

    tile = choose_prefill_tile(AttentionShape(32, 8, dim, 1.0), torch.empty(0, dtype=getattr(torch, dtype)))
    prefill = {"BLOCK_Q": tile.rows // 4, "KEYS": tile.keys, "PDL": True}
    options = {"num_warps": tile.warps, "num_stages": tile.stages, "launch_pdl": True}
    _check(_attend, _attention_types(cache, dtype), _constants(dtype, dim) | prefill | seen, options)


def _write_types(cache: str, dtype: str) -> dict[str, str]:
    model, kept = POINTERS[dtype], _kept(cache, dtype)
    types = _attention_types(cache, dtype) | {"k_ptr": model, "v_ptr": model, "slots_ptr": "*i64"}
    types |= {"k_cache_ptr": kept, "v_cache_ptr": kept}
    return types | {"positions_ptr": "*i64", "cos_sin_ptr": "*fp32", "q_norm_ptr": model, "k_norm_ptr": model}


def _write(cache: str, dtype: str, dim: int) -> None:
    from cadence.kernels.triton.linear.elementwise import write_kv

    constants = {"HEADS": 8, "HEADS_PAD": 8, "DIM": dim, "DIM_PAD": dim, "BLOCK_SIZE": 16}
    _check(write_kv, _write_types(cache, dtype), constants, {})


def _rope_write(cache: str, dtype: str, dim: int) -> None:
    from cadence.kernels.triton.attention.heads import rope_write_kv

    constants = {"Q_HEADS": 32, "K_HEADS": 8, "HEADS": 2, "BLOCK_SIZE": 16, "DIM": dim, "HALF": dim // 2}
    constants |= {"HALF_PAD": dim // 2, "REST_PAD": 1, "NORM": False, "PDL": True, "AHEAD": 17, "THREADS": 32}
    _check(rope_write_kv, _write_types(cache, dtype), constants, {"num_warps": 1, "launch_pdl": True})


_KERNELS = {"split attention": _split, "prefill attention": _prefill, "write_kv": _write, "rope_write_kv": _rope_write}
FORMS = {
    f"{name}, {cache}, {dtype}, {dim}": partial(check, cache, dtype, dim)
    for name, check in _KERNELS.items()
    for cache in _CACHES
    for dtype, dim in _MODELS
}
FORMS |= {
    f"{name} both ways, {cache}": partial(check, cache, "bfloat16", 64, **_SEEN)
    for name, check in (("split attention", _split), ("prefill attention", _prefill))
    for cache in ("int8", "bfloat16")
}
FORMS |= {
    f"{name} in chunks, {cache}": partial(check, cache, "bfloat16", 128, CHUNK=8192)
    for name, check in (("split attention", _split), ("prefill attention", _prefill))
    for cache in ("int8", "bfloat16")
}

"""Kernels of layers that keep a state, compiled for a GPU that need not be here."""

from __future__ import annotations

from functools import partial
from typing import Any

from tests.helpers.compiled import POINTERS, compile_for_gpu

_MOST_SHARED = 227 * 1024  # bytes of shared memory that a program may have
_ROWS = dict.fromkeys(("rows_ptr", "start_ptr", "replayed_ptr", "certain_ptr"), "*i32")
_FLOATS = dict.fromkeys(("state_ptr", "a_ptr", "d_ptr", "bias_ptr", "sums_ptr", "logs_ptr", "scales_ptr"), "*fp32")
_NUMBERS = dict.fromkeys(("low", "high", "scale"), "fp32")
_OF_MODEL = ("out_ptr", "x_ptr", "dt_ptr", "b_ptr", "c_ptr", "q_ptr", "k_ptr", "v_ptr", "decay_ptr", "beta_ptr")
_PREPARED = ("values_ptr", "keys_ptr", "weights_ptr")
_HEADS = {"HEADS": 80, "GROUPS": 1, "WIDTH": 128, "WIDTH_PAD": 128, "SIZE": 64}
_DELTA = {"HEADS": 32, "KEY_HEADS": 16, "KEY": 128, "KEY_PAD": 128, "VALUE": 128}
_CHANNELS = {"CHANNELS": 5120, "WIDTH": 16, "WIDTH_PAD": 16}


def _types(dtype: str) -> dict[str, str]:
    model = dict.fromkeys((*_OF_MODEL, "kept_ptr"), POINTERS[dtype])
    return {**_ROWS, **_FLOATS, **_NUMBERS, **model, **dict.fromkeys(_PREPARED, POINTERS[dtype])}


def _check(kernel: Any, dtype: str, constants: dict[str, Any], options: dict[str, Any]) -> None:
    assert compile_for_gpu(kernel, _types(dtype), constants, options).metadata.shared < _MOST_SHARED


def _walk(kind: str, single: bool) -> None:
    from cadence.kernels.triton.states import walk_channels, walk_delta, walk_heads
    from cadence.kernels.triton.states.tiles import StateTiles

    tiles = StateTiles()
    kernel, sizes, tile = {
        "heads": (walk_heads._walk_heads, _HEADS, tiles.heads),
        "channels": (walk_channels._walk_channels, _CHANNELS | {"AHEAD": tiles.channels.ahead}, tiles.channels),
        "delta": (walk_delta._walk_delta, _DELTA, tiles.delta),
    }[kind]
    constants = sizes | {"BLOCK": tile.block, "EVEN": True, "SINGLE": single, "PDL": True}
    options = {"num_warps": tile.warps, "enable_fp_fusion": False, "launch_pdl": True}
    _check(kernel, "bfloat16", constants, options)


def _factors(dtype: str) -> dict[str, Any]:
    import torch

    from cadence.kernels.triton.states.parts import factors_of

    return factors_of(getattr(torch, dtype), 64)


def _heads_in_chunks(dtype: str) -> None:
    from cadence.kernels.triton.states.chunks_heads import _scan_spans, _sum_spans
    from cadence.kernels.triton.states.tiles import StateTiles

    tile = StateTiles().head_chunks.fit(128, 64)
    constants = _HEADS | {"BLOCK": tile.block, "CHUNK": tile.chunk, "EVEN": True, **_factors(dtype)}
    options = {"num_warps": tile.warps, "num_stages": tile.stages if dtype == "bfloat16" else 1}
    _check(_sum_spans, dtype, constants, options)
    _check(_scan_spans, dtype, constants | {"SPLIT": True}, options)


def _delta_in_chunks(dtype: str) -> None:
    from cadence.kernels.triton.states.chunks_delta import _prepare, _walk_chunks
    from cadence.kernels.triton.states.tiles import StateTiles

    tile = StateTiles().delta_chunks.fit(128)
    constants = _DELTA | {"CHUNK": tile.chunk, "EVEN": True, **_factors(dtype)}
    _check(_prepare, dtype, constants | {"VALUE_PAD": 128}, {"num_warps": tile.warps, "num_stages": 1})
    stages = tile.stages if dtype == "bfloat16" else 1
    options = {"num_warps": tile.walk_warps, "num_stages": stages}
    _check(_walk_chunks, dtype, constants | {"BLOCK": tile.block}, options)


FORMS = {
    **{
        f"walk of {kind}, {'one token' if single else 'tokens'}": partial(_walk, kind, single)
        for kind in ("heads", "channels", "delta")
        for single in (True, False)
    },
    **{f"heads in chunks, {dtype}": partial(_heads_in_chunks, dtype) for dtype in ("bfloat16", "float32")},
    **{f"delta rule in chunks, {dtype}": partial(_delta_in_chunks, dtype) for dtype in ("bfloat16", "float32")},
}

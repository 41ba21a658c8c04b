"""The tensors that compressed-tensors stores for a matrix: what `cadence/models/quant` reads."""

from __future__ import annotations

from collections.abc import Callable

import torch

from cadence.models.quant.words import packed
from cadence.models.quantize.formats import WeightFormat
from cadence.models.quantize.grid import Grid

Tensors = dict[str, torch.Tensor]  # by what follows the module's name


def stored_tensors(values: torch.Tensor, grid: Grid, form: WeightFormat, dtype: torch.dtype) -> Tensors:
    """values [rows, cols] float32, on the grid; dtype: as the grid was chosen for"""
    scales = form.scale_code(dtype).stored(grid.scales, grid.whole)
    return {**_WRITERS[form.layout](grid.codes(values), grid, form), "weight_scale": scales}


def _packed_integers(codes: torch.Tensor, grid: Grid, form: WeightFormat) -> Tensors:
    tensors = {
        "weight_packed": _words(codes, grid, form.bits),
        "weight_shape": torch.tensor(codes.shape, dtype=torch.int64),
    }
    if not form.symmetric:
        tensors["weight_zero_point"] = _words(grid.zeros.t(), grid, form.bits).t().contiguous()
    return tensors


def _words(codes: torch.Tensor, grid: Grid, bits: int) -> torch.Tensor:
    """Along the last dimension, with half their range added."""
    return packed((codes - grid.numbers.low).to(torch.uint8), bits)


def _bytes(codes: torch.Tensor, grid: Grid, form: WeightFormat) -> Tensors:
    return {"weight": codes.to(torch.int8 if form.kind == "int" else torch.float8_e4m3fn)}


def _float4(codes: torch.Tensor, grid: Grid, form: WeightFormat) -> Tensors:
    sizes = torch.tensor((0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0))
    index = torch.searchsorted(sizes, codes.abs()) | (codes < 0).long() << 3
    halves = index.to(torch.uint8).unflatten(1, (-1, 2))
    tensors = {"weight_packed": halves[..., 0] | halves[..., 1] << 4}
    if form.layout == "nvfp4-pack-quantized":
        tensors["weight_global_scale"] = torch.tensor([grid.whole], dtype=torch.float32)
    return tensors


_WRITERS: dict[str, Callable[[torch.Tensor, Grid, WeightFormat], Tensors]] = {
    "pack-quantized": _packed_integers,
    "int-quantized": _bytes,
    "float-quantized": _bytes,
    "nvfp4-pack-quantized": _float4,
    "mxfp4-pack-quantized": _float4,
}

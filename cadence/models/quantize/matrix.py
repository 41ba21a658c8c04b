"""One matrix, quantised."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from cadence.core.errors import ConfigError, WeightsError
from cadence.models.quantize.choose import choose_grid
from cadence.models.quantize.compensate import compensated
from cadence.models.quantize.formats import WeightFormat
from cadence.models.quantize.stored import Tensors, stored_tensors


@dataclass(frozen=True, slots=True)
class QuantizedMatrix:
    values: torch.Tensor  # [rows, cols] float32, what the format holds
    tensors: Tensors  # by what follows the module's name


def quantized(
    parts: Sequence[torch.Tensor], form: WeightFormat, dtype: torch.dtype, hessian: torch.Tensor | None = None
) -> list[QuantizedMatrix]:
    """parts: matrices [rows, cols] of one input, of any float type; dtype: of scales; hessian [cols, cols] float32: of
    the inputs that they are calibrated with, None = every entry is rounded by itself"""
    if form.cell(parts[0].shape[1])[0] > 1 and len(parts) > 1:  # cells of several rows are of one part
        return [each for part in parts for each in quantized([part], form, dtype, hessian)]
    weight = torch.cat([part.to(torch.float32) for part in parts])
    if not bool(torch.isfinite(weight).all()):
        raise WeightsError("weights to quantise must be finite")
    if hessian is None:
        grid = choose_grid(weight, form, dtype, torch.ones(weight.shape[1]))
        values = grid.nearest(weight)
    else:
        grid = choose_grid(weight, form, dtype, hessian.diagonal())
        values = compensated(weight, grid, hessian)
    found, start = [], 0
    for part in parts:
        rows = slice(start, start + part.shape[0])
        own = grid.of_rows(rows) if len(parts) > 1 else grid
        found.append(QuantizedMatrix(values[rows], stored_tensors(values[rows], own, form, dtype)))
        start = rows.stop
    return found


def check_shape(name: str, shape: tuple[int, ...], form: WeightFormat) -> None:
    """Before anything is written."""
    if len(shape) != 2 or min(shape) < 1:
        raise WeightsError(f"tensor {name!r} has shape {list(shape)}, where a matrix is expected")
    if form.group and shape[1] % form.group:
        fits = [size for size in form.groups if shape[1] % size == 0]
        other = f"; --group-size {' or '.join(map(str, fits))} would" if fits else ""
        message = f"groups of {form.group} do not divide the {shape[1]} columns of {name!r}{other}"
        raise ConfigError(f"{form.name}: {message}; or leave it out with --ignore", "group_size")

"""Rounding that makes up for its own errors, as GPTQ does it.

Column by column, the most used first, each is rounded, and the columns that are left take up what was lost, such that
what the matrix makes of inputs like those seen changes least. With X [tokens, cols] the inputs and H = X^T X, the error
of W' in place of W is tr((W' - W) H (W' - W)^T); the best change of the columns left over is a row of the inverse of H.
"""

from __future__ import annotations

import torch

from cadence.core.errors import WeightsError
from cadence.models.quantize.grid import Grid
from cadence.models.quantize.numbers import Numbers

_BLOCK = 128  # columns rounded before the rest hears of them
_DAMPING = (0.01, 0.1, 1.0)  # of the mean of H's diagonal, added to it: the first that H can be inverted with


def compensated(weight: torch.Tensor, grid: Grid, hessian: torch.Tensor) -> torch.Tensor:
    """weight [rows, cols] float32, hessian [cols, cols] float32 -> [rows, cols] on the grid"""
    rows, cols = weight.shape
    order = torch.argsort(hessian.diagonal(), descending=True)
    factor = _inverse_factor(hessian[order][:, order])
    scales, zeros = (table.expand(rows, cols) for table in grid.of_columns(rows, cols))
    left = weight.t()[order]  # [cols, rows]: what is left to round, a column of the matrix after another
    out = torch.empty((cols, rows))
    for start in range(0, cols, _BLOCK):
        own = order[start : start + _BLOCK]
        end = start + len(own)
        cells = scales[:, own].t().contiguous(), zeros[:, own].t().contiguous()
        lost = _round_block(left[start:end], factor[start:end, start:end], grid.numbers, cells)
        out[own] = left[start:end]
        left[end:].addmm_(factor[start:end, end:].t(), lost, alpha=-1.0)
    return out.t().contiguous()


def _round_block(
    left: torch.Tensor, factor: torch.Tensor, numbers: Numbers, cells: tuple[torch.Tensor, torch.Tensor]
) -> torch.Tensor:
    """left [n, rows], rounded in place; cells = scales and zeros [n, rows] -> what each column lost [n, rows], as
    columns to come are to hear of it"""
    lost = torch.empty_like(left)
    for column, (scale, zero) in enumerate(zip(*cells, strict=True)):
        value = left[column]
        rounded = (numbers.nearest(value / scale + zero) - zero) * scale
        torch.div(value - rounded, factor[column, column], out=lost[column])
        left[column] = rounded
        left[column + 1 :].addr_(factor[column, column + 1 :], lost[column], alpha=-1.0)
    return lost


def _inverse_factor(hessian: torch.Tensor) -> torch.Tensor:
    """Upper triangular U with U^T U = (H + damping)^-1"""
    mean = float(hessian.diagonal().mean()) or 1.0
    for part in _DAMPING:
        damped = hessian + torch.diag(torch.full((hessian.shape[0],), part * mean))
        lower, failed = torch.linalg.cholesky_ex(damped)
        if int(failed):
            continue
        upper, failed = torch.linalg.cholesky_ex(torch.cholesky_inverse(lower), upper=True)
        if not int(failed) and bool(torch.isfinite(upper).all()):
            return upper
    raise WeightsError(
        "what the model computes of the calibration text is not finite: its weights cannot be calibrated"
    )

"""DoRA: what a product is scaled by so that rows of W + B A get the magnitudes that were learned.

Rows of the model's matrix come as numbers, some at a time, however they are stored.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from cadence.lora.adapter import AdaptedModule
from cadence.lora.names import Role

Rows = Callable[[int, int], torch.Tensor]  # (first, count) -> [count, cols] float32

_CHUNK = 1 << 22  # numbers at once


def factor(module: AdaptedModule, squares: torch.Tensor) -> torch.Tensor:
    """[out] float32: what products are scaled by. squares [out] float64: of the norms of what they are products with"""
    return module.tensors[Role.MAGNITUDE].float() / squares.sqrt().float()


def linear_squares(module: AdaptedModule, rows: Rows) -> torch.Tensor:
    """[out] float64: ||W + scale B A||^2, of each row"""
    a, b = module.tensors[Role.A].float(), module.tensors[Role.B].float()
    out, step = b.shape[0], max(_CHUNK // a.shape[1], 1)
    found = []
    for first in range(0, out, step):
        changed = rows(first, min(step, out - first)) + module.scale * (b[first : first + step] @ a)
        found.append(changed.double().square().sum(dim=1))
    return torch.cat(found)


def embedding_squares(module: AdaptedModule, rows: Rows, skipped: int) -> torch.Tensor:
    """[size] float64: the same of each column of the table, which is what comes out. skipped: rows at the beginning
    that another rank counts"""
    a, b = module.tensors[Role.EMBEDDING_A].float(), module.tensors[Role.EMBEDDING_B].float()
    count, step = a.shape[1], max(_CHUNK // b.shape[0], 1)
    squares = torch.zeros(b.shape[0], dtype=torch.float64)
    for first in range(skipped, count, step):
        size = min(step, count - first)
        changed = rows(first, size) + module.scale * (a[:, first : first + size].T @ b.T)
        squares += changed.double().square().sum(dim=0)
    return squares

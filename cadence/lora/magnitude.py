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


def linear_factor(module: AdaptedModule, rows: Rows) -> torch.Tensor:
    """[out] float32: magnitude / ||W + scale B A||, of each row"""
    a, b = module.tensors[Role.A].float(), module.tensors[Role.B].float()
    out, step = b.shape[0], max(_CHUNK // a.shape[1], 1)
    norms = torch.cat(
        [
            (rows(first, min(step, out - first)) + module.scale * (b[first : first + step] @ a)).norm(dim=1)
            for first in range(0, out, step)
        ]
    )
    return module.tensors[Role.MAGNITUDE].float() / norms


def embedding_factor(module: AdaptedModule, rows: Rows) -> torch.Tensor:
    """[size] float32: the same of each column of the table, which is what comes out"""
    a, b = module.tensors[Role.EMBEDDING_A].float(), module.tensors[Role.EMBEDDING_B].float()
    count, step = a.shape[1], max(_CHUNK // b.shape[0], 1)
    squares = torch.zeros(b.shape[0], dtype=torch.float64)
    for first in range(0, count, step):
        size = min(step, count - first)
        changed = rows(first, size) + module.scale * (a[:, first : first + size].T @ b.T)
        squares += changed.double().square().sum(dim=0)
    return module.tensors[Role.MAGNITUDE].float() / squares.sqrt().float()

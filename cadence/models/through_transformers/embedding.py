"""What stands in the place of transformers' embedding of tokens."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn

from cadence.models.interface.build import BuildContext
from cadence.models.layers.embedding import Embedding
from cadence.models.through_transformers.current import CurrentForward


class CalledEmbedding(Embedding):
    """ids [...] -> vectors [..., size], and what pictures or given vectors put in the place of some."""

    def __init__(self, build: BuildContext, rows: int, size: int, scale: float, now: CurrentForward) -> None:
        super().__init__(build, rows, size, scale=scale)
        self.now = now

    def forward(self, ids: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        ctx = self.now.ctx
        vectors = self.weight.lookup(_flat(ids), self._scale, ctx)
        return ctx.overlay.laid_over(vectors).view(*ids.shape, -1)


def _flat(ids: torch.Tensor) -> torch.Tensor:
    flat = ids.view(-1) if ids.is_contiguous() else ids.reshape(-1)
    return flat if flat.dtype is torch.int32 else flat.to(torch.int32)


@torch.no_grad()
def embedding_scale(module: Any) -> float | None:
    """What a module multiplies the vectors of its weight by, seen on random ones; None: it does something else."""
    if not isinstance(module, nn.Embedding) or module.max_norm is not None:
        return None
    trial = copy.copy(module)
    trial._buffers = {name: _as_built(module, name) for name in module._buffers}
    rows = torch.rand((4, 8), generator=torch.Generator().manual_seed(0)) + 0.5
    trial._parameters = {"weight": nn.Parameter(rows, requires_grad=False)}
    trial.num_embeddings, trial.padding_idx = 4, None
    if any(table is None for table in trial._buffers.values()):
        return None
    try:
        given = trial(torch.arange(4))
    except Exception:  # it takes something else
        return None
    scale = float(given[0, 0] / rows[0, 0])
    return scale if given.shape == rows.shape and torch.allclose(given, rows * scale, 1e-6, 1e-6) else None


def _as_built(module: Any, name: str) -> torch.Tensor | None:
    """A table of a module in shapes alone; a number that is named as the attribute it was made of is that."""
    made_of = getattr(module, f"scalar_{name}", None)
    return None if made_of is None else torch.tensor(float(made_of))

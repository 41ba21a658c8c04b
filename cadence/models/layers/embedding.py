"""From token ids to vectors, and from vectors to logits."""

from __future__ import annotations

import torch
from torch import nn

from cadence.core.errors import ConfigError
from cadence.models.build import BuildContext
from cadence.models.layers.parameter import empty_matrix, empty_parameter


class Embedding(nn.Module):
    """ids [T] -> [T, size], times `scale` rounded to the model's dtype."""

    weight: nn.Parameter  # [rows, size]; the loader may put a packed weight in its place

    def __init__(self, build: BuildContext, rows: int, size: int, scale: float = 1.0) -> None:
        super().__init__()
        self.weight = empty_matrix(build, rows, size)
        self._scale = float(torch.tensor(scale).to(build.dtype))
        self._ops = build.ops

    def forward(self, ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        return self._ops.embed(ids, self.weight, self._scale)


class PositionTable(nn.Module):
    """x [T, size], positions [T] -> x + the vectors of positions. The first `offset` rows are never read."""

    weight: nn.Parameter  # [offset + positions, size]

    def __init__(self, build: BuildContext, positions: int, size: int, offset: int) -> None:
        super().__init__()
        self.weight = empty_parameter(build, offset + positions, size)
        self._offset = offset
        self._ops = build.ops

    def forward(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        return self._ops.add_rows(x, self.weight, positions, self._offset)


class LearnedPositions(nn.Module):
    """ids [T], positions [T] -> project(token vector) + position vector, [T, size]. `offset` rows come first unused."""

    def __init__(
        self, build: BuildContext, tokens: Embedding, project: nn.Module, rows: int, size: int, *, offset: int = 0
    ) -> None:
        super().__init__()
        if build.max_model_len > rows:
            limit = f"max_model_len {build.max_model_len} is more than the {rows} positions the model has learned"
            raise ConfigError(limit, field="max_model_len")
        self.tokens = tokens
        self.project = project
        self.places = PositionTable(build, rows, size, offset)

    def forward(self, ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        return self.places(self.project(self.tokens(ids, positions)), positions)


class LMHead(nn.Module):
    """hidden [S, size] -> logits [S, vocab] in the model's dtype, or in float32.

    `softcap` > 0 bends them to softcap * tanh(logits / softcap), in float32, and leaves them so.
    """

    weight: nn.Parameter  # [vocab, size], the embedding's own when tied

    def __init__(self, build: BuildContext, tokens: Embedding, *, tied: bool, softcap: float = 0.0) -> None:
        super().__init__()
        self.weight = tokens.weight if tied else empty_matrix(build, *tokens.weight.shape)
        self._softcap = softcap
        self._ops = build.ops

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        logits = self._ops.logits(hidden, self.weight)
        return logits if self._softcap == 0.0 else self._ops.softcap(logits, self._softcap)

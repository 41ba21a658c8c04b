"""From token ids to vectors, and from vectors to logits."""

from __future__ import annotations

import torch
from torch import nn

from cadence.core.errors import ConfigError
from cadence.models.interface.build import BuildContext
from cadence.models.interface.model import ForwardContext, ModelInputs
from cadence.models.layers.linear import Linear, NoLinear
from cadence.models.layers.parameter import empty_parameter, empty_weight
from cadence.models.layers.rank_share import Held, vocabulary_part
from cadence.models.layers.weight import WeightHolder


def held_rows(build: BuildContext, rows: int, size: int) -> Held:
    """What this rank has of a matrix with a row for each token."""
    return Held({"": (rows, vocabulary_part(rows, build.ranks))}, (size, range(size)))


class Embedding(WeightHolder):
    """ids [T] -> [T, size], times `scale`, which is rounded to the model's dtype unless it is to be exact."""

    inner = False

    def __init__(self, build: BuildContext, rows: int, size: int, scale: float = 1.0, *, exact: bool = False) -> None:
        held = held_rows(build, rows, size)
        super().__init__(empty_weight(build, held.own_rows[""], size), held)
        self._scale = scale if exact else float(torch.tensor(scale).to(build.dtype))

    @property
    def tokens(self) -> Embedding:
        """As `LearnedPositions` has it."""
        return self

    def forward(self, inputs: ModelInputs, ctx: ForwardContext) -> torch.Tensor:
        return self.weight.lookup(inputs.ids, self._scale, ctx)


class PositionTable(nn.Module):
    """x [T, size], positions [T] -> x + the vectors of positions. The first `offset` rows are never read."""

    weight: nn.Parameter  # [offset + positions, size]

    def __init__(self, build: BuildContext, positions: int, size: int, offset: int) -> None:
        super().__init__()
        self.weight = empty_parameter(build, offset + positions, size)
        self._offset = offset

    def forward(self, x: torch.Tensor, positions: torch.Tensor, ctx: ForwardContext) -> torch.Tensor:
        return ctx.ops.add_rows(x, self.weight, positions, self._offset)


class NoTable(nn.Module):
    """Where a family adds no vectors at a place that others have a `PositionTable`."""

    def forward(self, x: torch.Tensor, positions: torch.Tensor, ctx: ForwardContext) -> torch.Tensor:
        return x


class LearnedPositions(nn.Module):
    """T tokens -> project(token vector) + position vector, [T, size]. `offset` rows come first unused."""

    def __init__(
        self,
        build: BuildContext,
        tokens: Embedding,
        project: Linear | NoLinear,
        rows: int,
        size: int,
        *,
        offset: int = 0,
    ) -> None:
        super().__init__()
        if build.max_model_len > rows:
            limit = f"max_model_len {build.max_model_len} is more than the {rows} positions the model has learned"
            raise ConfigError(limit, field="max_model_len")
        self.tokens = tokens
        self.project = project
        self.places = PositionTable(build, rows, size, offset)

    def forward(self, inputs: ModelInputs, ctx: ForwardContext) -> torch.Tensor:
        return self.places(self.project(self.tokens(inputs, ctx), ctx), inputs.rope_positions, ctx)


class LogitsBias(nn.Module):
    """What a family adds to its logits. A checkpoint that may lack it means zeros."""

    weight: nn.Parameter  # float32, as it is stored: [vocabulary] or [1, vocabulary]

    def __init__(self, build: BuildContext, *shape: int) -> None:
        super().__init__()
        self.weight = empty_parameter(build, *shape, dtype=torch.float32)
        self.weight.zero_()

    def forward(self, logits: torch.Tensor, ctx: ForwardContext) -> torch.Tensor:
        return ctx.ops.add_bias(logits, self.weight.view(-1))


class NoLogitsBias(nn.Module):
    def forward(self, logits: torch.Tensor, ctx: ForwardContext) -> torch.Tensor:
        return logits


class LMHead(WeightHolder):
    """hidden [S, size] -> logits [S, vocab] in the model's dtype, or in float32. Its weight is the embedding's own when
    tied.

    They are multiplied by `scale`, and with a bias `added.weight` [vocab] joins them. `softcap` > 0 bends them to
    softcap * tanh(logits / softcap), in float32, and leaves them so.
    """

    inner = False

    def __init__(
        self,
        build: BuildContext,
        tokens: Embedding,
        *,
        tied: bool,
        scale: float = 1.0,
        softcap: float = 0.0,
        bias: bool = False,
    ) -> None:
        weight = tokens.weight
        super().__init__(weight if tied else empty_weight(build, weight.rows, weight.cols), tokens.held)
        self.vocab_size, _ = tokens.held.rows[""]
        self._scale, self._softcap = scale, softcap
        self.added = LogitsBias(build, self.vocab_size) if bias else NoLogitsBias()

    def forward(self, hidden: torch.Tensor, ctx: ForwardContext) -> torch.Tensor:
        hidden = hidden if self._scale == 1.0 else ctx.ops.scale(hidden, self._scale)
        logits = self.added(self.weight.logits(hidden, ctx), ctx)
        return logits if self._softcap == 0.0 else ctx.ops.softcap(logits, self._softcap)

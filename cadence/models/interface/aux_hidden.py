"""The residual stream as it enters chosen layers of a model, for heads that draft from more than its last states."""

from __future__ import annotations

from collections.abc import Sequence

import torch


class AuxHiddenStates:
    """Filled by each forward it goes along with; what the forward returns does not change by it."""

    def __init__(self, layers: Sequence[int] = ()) -> None:
        """layers: 0 is the stream of the embedding, i the output of layer i - 1; in the order they are wanted."""
        self.layers = tuple(layers)
        self._by_layer: dict[int, torch.Tensor] = {}

    def put(self, layer: int, stream: torch.Tensor) -> None:
        self._by_layer[layer] = stream

    def of(self, layer: int) -> torch.Tensor:
        """What was put there by this forward."""
        return self._by_layer[layer]

    @property
    def states(self) -> tuple[torch.Tensor, ...]:
        """Of the last forward, [T, H] for each of `layers`: of every token, whichever go on to the end."""
        return tuple(self._by_layer[layer] for layer in self.layers)


NO_AUX = AuxHiddenStates()

"""The queries of cross attention, for those who want to know where tokens look."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

import torch

from cadence.kernels.interface.attention_batch import AttentionShape


@dataclass(frozen=True, slots=True)
class CrossHeads:
    """What this device has of the cross attention of a layer of the decoder."""

    layer: int  # of the KV cache
    shape: AttentionShape
    heads: range  # of all heads of queries, those that are here


class CrossQueries(Protocol):
    def put(self, layer: int, q: torch.Tensor) -> None:
        """Of a layer of the KV cache, q [T, Hq, D]: of all tokens of the forward, or of the wanted ones."""
        ...


class NoCrossQueries:
    """Of a forward none of whose rows asks."""

    def put(self, layer: int, q: torch.Tensor) -> None: ...


NO_CROSS_QUERIES = NoCrossQueries()


class KeptCrossQueries:
    """Those of the newest forward, until they are taken."""

    def __init__(self) -> None:
        self._layers: frozenset[int] = frozenset()
        self._queries: dict[int, torch.Tensor] = {}

    def want(self, layers: Iterable[int]) -> None:
        """From the next forward on."""
        self._layers = frozenset(layers)

    def put(self, layer: int, q: torch.Tensor) -> None:
        if layer in self._layers:
            self._queries[layer] = q

    def take(self) -> dict[int, torch.Tensor]:
        """By layer of the KV cache."""
        queries, self._queries = self._queries, {}
        return queries

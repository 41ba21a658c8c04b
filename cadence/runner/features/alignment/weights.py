"""From the queries of some heads to one matrix of tokens and positions, in which a path shows when tokens were said.

Heads are taken one by one, each in the same way whatever else a step computes: the values of a request are the same
bits in any company, and few weights exist at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from cadence.kernels.interface.collectives import Collectives
from cadence.kernels.reference.kv_rows import QUANTISED, unpack_rows
from cadence.models.interface.cross_queries import CrossHeads
from cadence.models.interface.model import LayerCache

MEDIAN_WIDTH = 7  # positions


@dataclass(frozen=True, slots=True)
class RowKeys:
    """Where a row finds the keys of its encoder's output."""

    tables: Sequence[torch.Tensor]  # per KV group [num_rows, blocks] int32
    row: int
    length: int  # positions

    def read(self, cache: LayerCache, dim: int) -> torch.Tensor:
        """-> [Hk, length, dim] float32"""
        blocks = -(-self.length // cache.k.shape[2])
        table = self.tables[cache.group][self.row, :blocks].long()
        if cache.k.dtype in QUANTISED:
            found = unpack_rows(cache.k.view(torch.uint8)[table].view(cache.k.dtype), dim)
        else:
            found = cache.k[table].float()
        return found.transpose(0, 1).flatten(1, 2)[:, : self.length]


@dataclass(frozen=True, slots=True)
class AlignmentHeads:
    """Of a decoder: what makes the matrix, the mean over heads of how much more than others, in their own spread,
    tokens look at a position."""

    layers: Mapping[int, CrossHeads]  # by layer of the decoder
    caches: Sequence[LayerCache]  # by layer of the KV cache
    ranks: Collectives  # that share the heads of each layer

    def add(
        self,
        total: torch.Tensor,
        heads: Sequence[tuple[int, int]],
        queries: Mapping[int, torch.Tensor],
        keys: RowKeys,
    ) -> torch.Tensor:
        """total [n, positions] float32: the sum over heads of layers before. heads: (layer, head), of which those in
        layers that are here count. queries: by layer of the KV cache [n, Hq, D] -> `total`, with these"""
        for layer in sorted({layer for layer, _ in heads} & self.layers.keys()):
            own = self.layers[layer]
            read = keys.read(self.caches[own.layer], own.shape.head_dim)
            q = queries[own.layer].float() * own.shape.scale
            for head in (head for other, head in heads if other == layer):
                total += smoothed(self._weights(own, head, q, read)[:, : total.shape[1]])
        return total

    def _weights(self, own: CrossHeads, head: int, q: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        """Of one head of all ranks: q [n, Hq, D], keys [Hk, length, D] -> [n, length]"""
        if head in own.heads:
            at = head - own.heads.start
            scores = q[:, at] @ keys[at * own.shape.num_kv_heads // own.shape.num_heads].T
            weights = torch.softmax(scores, dim=-1)
        else:
            weights = torch.zeros((q.shape[0], keys.shape[1]), device=q.device)  # a term that changes no bit
        return self.ranks.all_reduce(weights)


def smoothed(weights: torch.Tensor) -> torch.Tensor:
    """weights [n, positions]: of each position as far from its mean as its spread, and without outliers along them."""
    spread = weights.std(dim=0, keepdim=True, unbiased=False)
    even = (weights - weights.mean(dim=0, keepdim=True)) / torch.where(spread > 0, spread, 1.0)
    return median_filter(even, MEDIAN_WIDTH)


def median_filter(values: torch.Tensor, width: int) -> torch.Tensor:
    """values [n, positions], along the last axis; edges are mirrored. Left as they are where there are too few."""
    half = width // 2
    if values.shape[-1] <= half:
        return values
    padded = torch.nn.functional.pad(values, (half, half), mode="reflect")
    return padded.unfold(-1, width, 1).median(dim=-1).values

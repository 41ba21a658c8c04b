"""What a key gets for its distance from the query, by buckets of distances: MPNet, T5."""

from __future__ import annotations

import math

import torch
from torch import nn

from cadence.kernels.interface.attention_batch import DistanceBias
from cadence.models.interface.build import BuildContext
from cadence.models.layers.derived import DerivedTable
from cadence.models.layers.parameter import empty_parameter


class Distances(DerivedTable):
    """By bucket, and spelt out for every distance."""

    weight: nn.Parameter  # [buckets, heads]

    def __init__(self, build: BuildContext, buckets: int, heads: int, far: int, *, both_ways: bool = True) -> None:
        """far: tokens from which on all distances are in one bucket. both_ways: keys after a query are seen, too"""
        super().__init__()
        self.weight = empty_parameter(build, buckets, heads)
        self.bias = DistanceBias(torch.zeros((heads, 2 * far + 1), dtype=torch.float32, device=build.device))
        self._far = far
        self._both_ways = both_ways

    def derive(self) -> None:
        """In place: layers hold the table, or the rows of their heads."""
        distances = torch.arange(-self._far, self._far + 1)
        buckets = _buckets(distances, self.weight.shape[0], self._far, self._both_ways)
        self.bias.table.copy_(self.weight[buckets.to(self.weight.device)].T)


def _buckets(distances: torch.Tensor, count: int, far: int, both_ways: bool) -> torch.Tensor:
    """distances [n] from query to key -> [n] int64. Both ways, half of the buckets are for keys after the query. Of
    each half, or of all, one bucket each is for the nearest keys, as many again are for ranges that grow by a factor up
    to `far`."""
    half = count // 2 if both_ways else count
    away = distances.abs() if both_ways else (-distances).clamp(min=0)
    near = half // 2
    ranges = torch.log(away.clamp(min=1).float() / near) / math.log(far / near) * (half - near)
    far_bucket = (near + ranges.long()).clamp(max=half - 1)
    after = (distances > 0) * half if both_ways else 0
    return torch.where(away < near, away, far_bucket) + after

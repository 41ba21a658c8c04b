"""What a loader can fill."""

from __future__ import annotations

from torch import nn

from cadence.models.weight_map import WeightMap


class MappedModule(nn.Module):
    """A module that says which tensors of a checkpoint its parameters come from."""

    weights: WeightMap

"""What a loader can fill."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from cadence.models.tensor_plan import ShapeOf, TensorPlan
from cadence.models.weight_map import WeightMap


class MappedModule(nn.Module):
    """A module that says which tensors of a checkpoint its parameters come from."""

    weights: WeightMap
    computes_every_token = False  # all its layers do: adapters meet all tokens of a forward in each

    def forget_copies(self) -> bool:
        """Forgets what it made of its weights while it ran: they are others now -> whether there was anything"""
        return False

    def tensor_plan(self, names: Sequence[str], shape_of: ShapeOf) -> TensorPlan | None:
        """Of a checkpoint with these tensors, where it has them otherwise than `weights` says. None: it has not."""
        return None

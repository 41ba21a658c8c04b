"""What ranks compute together is put around the weights that they share, once these are loaded."""

from __future__ import annotations

from typing import TypeVar

from torch import nn

from cadence.kernels.interface.collectives import Collectives
from cadence.models.layers.experts import ExpertLinear, Experts
from cadence.models.layers.summed_experts import SummedExperts
from cadence.models.layers.summed_weight import SummedWeight
from cadence.models.layers.vocabulary_weight import VocabularyWeight
from cadence.models.layers.weight import Weight, WeightHolder

_Model = TypeVar("_Model", bound=nn.Module)


def joined(model: _Model, ranks: Collectives) -> _Model:
    """Of a map with some rows of an inner matrix nothing is to be done: what comes next takes this rank's part."""
    for module in model.modules():
        if isinstance(module, Experts):
            module.use(module.product if module.is_all or ranks.size == 1 else SummedExperts(module.product, ranks))
        elif isinstance(module, WeightHolder) and not module.held.is_all and not isinstance(module, ExpertLinear):
            module.use(_around(module, ranks))
    return model


def _around(holder: WeightHolder, ranks: Collectives) -> Weight:
    if holder.held.sums:
        return SummedWeight(holder.weight, ranks)
    return holder.weight if holder.inner else VocabularyWeight(holder.weight, holder.held, ranks)

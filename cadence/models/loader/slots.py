"""What a checkpoint fills: every matrix, vector and table of a model, under the names that weight maps know."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import nn

from cadence.models.layers.linear import Linear
from cadence.models.layers.weight import WeightHolder


@dataclass(frozen=True, slots=True, eq=False)
class Slot:
    tensor: torch.Tensor  # [rows, in] or [rows]; a matrix that is to be packed, or was, has no memory
    module: nn.Module  # the first it belongs to
    names: list[str] = field(default_factory=list)  # of a tied matrix, several: "embed.weight", "lm_head.weight"
    holders: list[WeightHolder] = field(default_factory=list)  # of a matrix that is a `Weight`

    def part(self, part: str) -> torch.Tensor:
        """The rows of one part of a fused map, a view; "" = all."""
        if part and isinstance(self.module, Linear):
            return self.tensor[self.module.part_rows(part)]
        return self.tensor


def slots(model: nn.Module) -> list[Slot]:
    """In the order of the modules, the weight of each before its vectors."""
    found: dict[int, Slot] = {}
    for path, module in model.named_modules(remove_duplicate=False):
        for name, tensor, owner in _own(module):
            slot = found.setdefault(owner, Slot(tensor, module))
            slot.names.append(f"{path}.{name}")
            if isinstance(module, WeightHolder) and owner == id(module.weight.innermost):
                slot.holders.append(module)
    return list(found.values())


def _own(module: nn.Module) -> Iterator[tuple[str, torch.Tensor, int]]:
    """(name, tensor, what makes it the same as another) of what lies in the module itself."""
    if isinstance(module, WeightHolder):
        weight = module.weight.innermost
        yield "weight", weight.to_fill(), id(weight)
    for name, parameter in module.named_parameters(recurse=False):
        yield name, parameter.data, id(parameter)

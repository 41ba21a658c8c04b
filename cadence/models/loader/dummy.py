"""Weights for measurements: random, the same at every start, made where the parameters lie."""

from __future__ import annotations

import torch
from torch import nn

from cadence.models.loader.packing import NoPacking, Packing
from cadence.models.loader.slots import slots


def fill_dummy(model: nn.Module, seed: int, packing: Packing | None = None) -> None:
    """Matrices keep the size of what passes through them, norms are 1, biases 0: activations stay in range."""
    packing = packing or NoPacking()
    for index, slot in enumerate(slots(model)):
        tensor = slot.tensor
        if tensor.dim() == 1:
            tensor.fill_(1.0 if slot.names[0].endswith("weight") else 0.0)
        elif tensor.is_meta:
            made = torch.empty(tensor.shape, dtype=tensor.dtype, device=packing.device)
            packing.give(slot.holders, _random(made, seed + index))
        else:
            _random(tensor, seed + index)


def _random(values: torch.Tensor, seed: int) -> torch.Tensor:
    """Fills values [out, in] -> themselves."""
    generator = torch.Generator(device=values.device).manual_seed(seed % 2**63)
    bound = (3.0 / values.shape[-1]) ** 0.5  # variance 1 / in
    return values.uniform_(-bound, bound, generator=generator)

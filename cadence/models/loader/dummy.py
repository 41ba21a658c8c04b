"""Weights for measurements: random, the same at every start, made where the parameters lie."""

from __future__ import annotations

import torch
from torch import nn

from cadence.models.loader.packing import NoPacking, Packing


def fill_dummy(model: nn.Module, seed: int, packing: Packing | None = None) -> None:
    """Matrices keep the size of what passes through them, norms are 1, biases 0: activations stay in range."""
    packing = packing or NoPacking()
    for index, (name, parameter) in enumerate(list(model.named_parameters())):
        if parameter.dim() == 1:
            parameter.data.fill_(1.0 if name.endswith("weight") else 0.0)
        elif parameter.is_meta:
            holders = [module for module in model.modules() if getattr(module, "weight", None) is parameter]
            packing.give(holders, _random(torch.empty(parameter.shape, dtype=parameter.dtype), seed + index))
        else:
            _random(parameter.data, seed + index)


def _random(values: torch.Tensor, seed: int) -> torch.Tensor:
    """Fills values [out, in] -> themselves."""
    generator = torch.Generator(device=values.device).manual_seed(seed % 2**63)
    bound = (3.0 / values.shape[-1]) ** 0.5  # variance 1 / in
    return values.uniform_(-bound, bound, generator=generator)

"""Weights for measurements: random, the same at every start, made where the parameters lie."""

from __future__ import annotations

import torch
from torch import nn


def fill_dummy(model: nn.Module, seed: int) -> None:
    """Matrices keep the size of what passes through them, norms are 1, biases 0: activations stay in range."""
    for index, (name, parameter) in enumerate(model.named_parameters()):
        if parameter.dim() == 1:
            parameter.data.fill_(1.0 if name.endswith("weight") else 0.0)
            continue
        generator = torch.Generator(device=parameter.device).manual_seed((seed + index) % 2**63)
        bound = (3.0 / parameter.shape[-1]) ** 0.5  # variance 1 / in
        parameter.data.uniform_(-bound, bound, generator=generator)

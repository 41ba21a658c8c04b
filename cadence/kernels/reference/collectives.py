"""What ranks compute together, told the tensors of all of them: the oracle."""

from __future__ import annotations

from collections.abc import Sequence

import torch


def all_reduce(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """By rank -> what each of them gets"""
    total = tensors[0].float()
    for tensor in tensors[1:]:
        total = total + tensor.float()
    return total.to(tensors[0].dtype)


def all_gather(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    return torch.cat(list(tensors), dim=-1)


def own_ids(ids: torch.Tensor, own: range) -> torch.Tensor:
    places = ids - own.start
    return torch.where((places >= 0) & (places < len(own)), places, 0)


def all_pick(tensors: Sequence[torch.Tensor], ids: torch.Tensor, each: int) -> torch.Tensor:
    return torch.stack(list(tensors))[ids.long() // each, torch.arange(len(ids), device=ids.device)]

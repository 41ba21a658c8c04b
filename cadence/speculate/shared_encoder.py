"""Whether a draft model has its target's encoder, as models have that were distilled with the encoder kept."""

from __future__ import annotations

from enum import Enum

import torch
from torch import nn

from cadence.kernels.interface.attention_batch import AttentionShape
from cadence.kernels.interface.collectives import Collectives
from cadence.models.encoder_decoder import EncoderDecoderLM
from cadence.models.layers.weight import Weight, WeightHolder

_ROWS = 4096  # of a matrix that are compared at a time
_SETTINGS = (int, float, str, Enum, AttentionShape)


def share_encoder(target: EncoderDecoderLM, draft: EncoderDecoderLM, ranks: Collectives, device: torch.device) -> None:
    """Gives the draft the target's encoder in place of its own, where both have the same numbers on every rank."""
    same = torch.tensor([float(same_module(target.encoder, draft.encoder))], device=device)
    if int(ranks.all_reduce(same)) == ranks.size:
        draft.encoder = target.encoder


def same_module(one: nn.Module, other: nn.Module) -> bool:
    """Whether two modules compute the same: the same parts, each with the same settings and numbers."""
    ours, theirs = dict(one.named_modules()), dict(other.named_modules())
    return ours.keys() == theirs.keys() and all(_same(ours[name], theirs[name]) for name in ours)


def _same(one: nn.Module, other: nn.Module) -> bool:
    if type(one) is not type(other) or _settings(one) != _settings(other):
        return False
    if isinstance(one, WeightHolder) and isinstance(other, WeightHolder) and not _same_weight(one.weight, other.weight):
        return False
    ours, theirs = _tensors(one), _tensors(other)
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


def _settings(module: nn.Module) -> dict[str, object]:
    return {name: value for name, value in vars(module).items() if isinstance(value, _SETTINGS)}


def _tensors(module: nn.Module) -> dict[str, torch.Tensor]:
    return {**dict(module.named_parameters(recurse=False)), **dict(module.named_buffers(recurse=False))}


def _same_weight(one: Weight, other: Weight) -> bool:
    if type(one) is not type(other) or (one.rows, one.cols) != (other.rows, other.cols):
        return False
    pieces = ((first, min(_ROWS, one.rows - first)) for first in range(0, one.rows, _ROWS))
    return all(torch.equal(one.values_of(*piece), other.values_of(*piece)) for piece in pieces)

"""Values of a checkpoint as our parameters have them."""

from __future__ import annotations

import math

import torch

from cadence.models.weight_map import Rule


def as_ours(stored: torch.Tensor, rule: Rule) -> torch.Tensor:
    """A tensor of the checkpoint -> what the rule's target holds, maybe a view."""
    values = (
        stored.T if rule.transpose and stored.dim() == 2 else stored.flatten(1) if rule.kernel or rule.taps else stored
    )
    index, count = rule.columns
    if count > 1 and values.dim() == 2:
        values = values.chunk(count, dim=1)[index]
    values = scaled(values, rule) if rule.is_scaled else values
    return values.float() + rule.add if rule.add else values


def scaled(values: torch.Tensor, rule: Rule) -> torch.Tensor:
    """values [rows, ...] of a target, or what goes with its rows -> as the rule's target has them, float32"""
    values = values.float() * rule.times
    if not rule.factors:
        return values
    counts, factors = zip(*rule.factors, strict=True)
    of_row = torch.tensor(factors).repeat_interleave(torch.tensor(counts))
    return values * of_row.view(-1, *[1] * (values.dim() - 1))


def stored_shape(ours: tuple[int, ...], rule: Rule) -> tuple[int, ...]:
    """Of a target -> of the tensor in the checkpoint."""
    if len(ours) != 2:
        return ours
    if rule.taps:
        return ours[0], 1, ours[1]
    rows, cols = ours[0], ours[1] * rule.columns[1]
    if rule.kernel:
        return rows, cols // math.prod(rule.kernel), *rule.kernel
    return (cols, rows) if rule.transpose else (rows, cols)

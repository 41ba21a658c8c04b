"""Packed matrices with other values, in the memory where they lie: recorded work points there."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import torch


def overwrite(old: Any, new: Any) -> bool:
    """Copies what one packed matrix holds over what another does -> whether they are of one form; else nothing is
    done."""
    ours, theirs = list(_leaves(old)), list(_leaves(new))
    if len(ours) != len(theirs) or not all(map(_alike, ours, theirs)):
        return False
    for mine, its in zip(ours, theirs, strict=True):
        if isinstance(mine, torch.Tensor) and mine.data_ptr() != its.data_ptr():
            mine.copy_(its)
    return True


def tensors_of(packed: Any) -> list[torch.Tensor]:
    """All that it holds."""
    return [leaf for leaf in _leaves(packed) if isinstance(leaf, torch.Tensor)]


def _leaves(value: Any) -> Iterator[Any]:
    """Tensors, and what says their form."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, tuple | list):
        yield len(value)
        for each in value:
            yield from _leaves(each)
    elif isinstance(value, dict):
        yield from _leaves(sorted(value.items()))
    elif hasattr(value, "held"):
        yield type(value)
        yield from _leaves(tuple(value.held()))
    elif dataclasses.is_dataclass(value):
        yield type(value)
        for field in dataclasses.fields(value):
            yield from _leaves(getattr(value, field.name))
    else:
        yield value


def _alike(mine: Any, its: Any) -> bool:
    if isinstance(mine, torch.Tensor) and isinstance(its, torch.Tensor):
        layout = mine.shape, mine.dtype, mine.device, mine.stride()
        return layout == (its.shape, its.dtype, its.device, its.stride())
    return type(mine) is type(its) and bool(mine == its)

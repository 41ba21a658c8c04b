"""What tests draw at random is the same every time, whatever ran before."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch

_Given = ParamSpec("_Given")
_Made = TypeVar("_Made")


def same_every_time(make: Callable[_Given, _Made]) -> Callable[_Given, _Made]:
    """For makers of models: classes of transformers draw some parameters from torch's global generator, which is left
    as it was."""

    @functools.wraps(make)
    def seeded(*args: _Given.args, **kwargs: _Given.kwargs) -> _Made:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(20_250)
            return make(*args, **kwargs)

    return seeded

"""The two things that ranks with a GPU each do together. All else is made of them."""

from __future__ import annotations

from typing import Protocol

import torch


class Exchange(Protocol):
    name: str  # what tensors go by, as a log says it

    def sum(self, x: torch.Tensor) -> torch.Tensor:
        """-> the sum over ranks, the same bits on all of them"""
        ...

    def gather(self, x: torch.Tensor) -> torch.Tensor:
        """-> [ranks, *x.shape]"""
        ...

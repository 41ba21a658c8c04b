"""A matrix that a checkpoint stores in several tensors."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch

from cadence.kernels.interface.scaled_numbers import ScaledNumbers

Blocks = tuple[str, torch.Tensor]  # kind, bytes


class StoredMatrix(ABC):
    """W [rows, cols]. Made from headers alone, which fit together; tensors are read by `values` and `blocks`."""

    shape: tuple[int, int]

    @abstractmethod
    def values(self) -> torch.Tensor:
        """[rows, cols], of the type and bits that the format prescribes."""

    def blocks(self) -> Blocks | None:
        """The same numbers, before they are rounded to the type of `values`, as blocks that kernels multiply; None
        where no blocks hold them exactly, or as nearly as a kind of matrix says."""
        return None

    def numbers(self) -> ScaledNumbers | None:
        """The same numbers as kernels of some devices take them; None where it has no such form."""
        return None

    def order(self) -> torch.Tensor | None:
        """[cols] integers: column j of blocks and numbers is column order[j] of the matrix; None = in order."""
        return None

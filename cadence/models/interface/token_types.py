"""Which of its prompt's texts each token of a forward belongs to: encoders that compare two texts tell them apart."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from cadence.kernels.interface.ops import Ops


class OneText:
    """No prompt has a second one."""

    def of(self, positions: torch.Tensor, ops: Ops) -> torch.Tensor:
        """positions [T] int64 -> [T] int64: 0 of a token of its prompt's first text, 1 of the second"""
        return ops.zeros_like(positions)


@dataclass(frozen=True, slots=True)
class TwoTexts:
    types: torch.Tensor  # [T] int64, as the device finds them

    def of(self, positions: torch.Tensor, ops: Ops) -> torch.Tensor:
        return self.types


ONE_TEXT = OneText()
TokenTypes = OneText | TwoTexts

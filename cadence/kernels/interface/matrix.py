"""Matrices in a form that only their own kernels know: blocks of few bits, rows side by side, what multiplies fast."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch


class PackedMatrix(Protocol):
    """W [rows, cols], bound to the kernels it was packed for: no others can read it."""

    rows: int
    cols: int

    def linear(self, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """x [T, cols], bias [rows] float32 or None -> [T, rows] of x's dtype."""
        ...

    def logits(self, x: torch.Tensor) -> torch.Tensor:
        """x [S, cols] -> [S, rows] float32."""
        ...

    def lookup(self, ids: torch.Tensor, scale: float) -> torch.Tensor:
        """ids [T] int32 -> W[ids] * scale, [T, cols]."""
        ...

    def values(self, first: int, count: int) -> torch.Tensor:
        """Rows [first, first + count) as numbers, [count, cols] float32. From any thread; never recorded."""
        ...


class MatrixPacker(Protocol):
    """Packs the matrices of one model. A part is one tensor of its checkpoint; only the packer knows what it is."""

    keeps_blocks: bool  # whether quantised blocks of a file may stay as they are

    def pack_blocks(self, kind: str, blocks: torch.Tensor, rows: int, cols: int) -> Any | None:
        """blocks: [bytes] uint8, of the GGUF type `kind` -> a part; None where no kernel multiplies that type."""
        ...

    def pack_values(self, values: torch.Tensor, inner: bool) -> Any:
        """values [rows, cols] of any float dtype -> a part. Not `inner`: it turns tokens into vectors or back."""
        ...

    def stack(self, parts: Sequence[Any], order: torch.Tensor | None = None) -> PackedMatrix:
        """Parts of one input, one below the other. order [cols]: their column j is column order[j] of the matrix."""
        ...

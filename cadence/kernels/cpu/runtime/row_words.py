"""Rows of tensors as kernels in C take them."""

from __future__ import annotations

from typing import Any

import torch


def row_words(out: torch.Tensor, x: torch.Tensor) -> dict[str, Any]:
    """For a kernel from rows of x [T, H] to rows of a contiguous out [T, H]."""
    if x.stride(1) != 1:
        raise ValueError(f"rows of x {list(x.shape)} are not contiguous")
    rows, width = x.shape
    return {"out": out, "x": x, "rows": rows, "width": width, "x_stride": x.stride(0)}


def dense_rows(x: torch.Tensor) -> torch.Tensor:
    """x [T, H] itself where its rows are contiguous, else a contiguous copy."""
    return x if x.stride(1) == 1 else x.contiguous()

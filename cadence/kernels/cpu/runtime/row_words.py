"""Rows of tensors as kernels in C take them."""

from __future__ import annotations

import torch


def row_words(out: torch.Tensor, x: torch.Tensor) -> dict[str, int]:
    """For a kernel from rows of x [T, H] to rows of a contiguous out [T, H]."""
    if x.stride(1) != 1:
        raise ValueError(f"rows of x {list(x.shape)} are not contiguous")
    rows, width = x.shape
    return {"out": out.data_ptr(), "x": x.data_ptr(), "rows": rows, "width": width, "x_stride": x.stride(0)}


def dense_rows(x: torch.Tensor) -> torch.Tensor:
    """x [T, H] itself where its rows are contiguous, else a contiguous copy."""
    return x if x.stride(1) == 1 else x.contiguous()

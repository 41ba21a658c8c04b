"""Rows of a matrix as float8 E4M3, each with a scale of its own."""

from __future__ import annotations

import torch

_MOST = 448.0  # the largest float8 E4M3
_LEAST = 1e-12  # of a scale: rows of zeros stay so


def float8_of(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """[rows, cols] of a float type -> numbers [rows, cols] float8 E4M3, scales [rows, 1] float32"""
    scales = (values.abs().amax(dim=1, keepdim=True).float() / _MOST).clamp(min=_LEAST)
    return (values.float() / scales).clamp(-_MOST, _MOST).to(torch.float8_e4m3fn), scales

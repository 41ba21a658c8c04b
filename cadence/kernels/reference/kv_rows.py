"""Rows of an int8 KV cache: entries [..., D] int8, followed by the four bytes of their float32 scale."""

from __future__ import annotations

import torch

from cadence.core.kv_spec import SCALE_BYTES

_LEAST_ABSMAX = 1e-30  # a row below that is all zeros: its inverse scale would leave float32


def quantise(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """x [..., D] -> multiples [..., D] int8 (ties to even) of scales [..., 1] float32: absmax / 127."""
    x = x.float()
    absmax = x.abs().amax(dim=-1, keepdim=True)
    usable = (absmax >= _LEAST_ABSMAX) & absmax.isfinite()
    inverse = torch.where(usable, torch.full_like(absmax, 127.0) / absmax, 0.0)
    return torch.round(x * inverse).to(torch.int8), absmax / 127.0


def pack_rows(x: torch.Tensor) -> torch.Tensor:
    """x [..., D] -> rows [..., D + SCALE_BYTES] int8."""
    entries, scale = quantise(x)
    return torch.cat([entries, scale.view(torch.int8)], dim=-1)


def unpack_rows(rows: torch.Tensor) -> torch.Tensor:
    """rows [..., D + SCALE_BYTES] int8 -> [..., D] float32."""
    entries, scale = rows[..., :-SCALE_BYTES], rows[..., -SCALE_BYTES:].contiguous()
    return entries.float() * scale.view(torch.float32)


def rounded(x: torch.Tensor) -> torch.Tensor:
    """x [..., D] as it comes back from int8, float32."""
    return unpack_rows(pack_rows(x))

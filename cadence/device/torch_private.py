"""Everything of torch that is not documented and is used here, read off the versions below; a test holds it to them."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

HOLDS_FOR = ("2.11", "2.13")


class UncompiledDispatchMode(TorchDispatchMode):
    """Sees every operation of torch while it is entered."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing here is compiled: to be told so, torch would import its compiler, 100 MB and seconds of it."""
        return False


def held_allocator(allocator: Any) -> Any:
    """What a pool of memory takes, of an allocator for GPUs that was plugged in."""
    return allocator._allocator


def clear_matmul_workspaces() -> None:
    """What the library of products keeps on a GPU for every stream it ever worked on, 32 MiB each."""
    torch._C._cuda_clearCublasWorkspaces()


def scaled_matmul(
    x: torch.Tensor, weight: torch.Tensor, x_scales: torch.Tensor, weight_scales: torch.Tensor, dtype: torch.dtype
) -> torch.Tensor:
    """x [T, in] and weight [in, out], column-major, of fp8; scales [T, 1] and [1, out] float32 -> [T, out] of dtype"""
    return torch._scaled_mm(x, weight, x_scales, weight_scales, out_dtype=dtype, use_fast_accum=True)


def cudnn_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """q [1, Hq, n, D], k and v [1, Hk, m, D] -> (out [1, Hq, n, D], logarithms of sums of weights [1, Hq, n, 1])"""
    op = torch.ops.aten._scaled_dot_product_cudnn_attention
    return op(q, k, v, None, True, 0.0, causal, False, scale=scale)[:2]

"""Caches of eight bits as the kernels of a GPU have them, made of those of the reference."""

from __future__ import annotations

import torch

from cadence.core.model.kv_spec import SCALE_BYTES


def on_gpu(kv: tuple[torch.Tensor, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """[num_blocks, Hk, block_size, D + 4] of rows -> the same shape and type: of each block and head first the entries
    (of keys token by token, of values dim by dim), then the scales."""
    return _turned(kv[0], False), _turned(kv[1], True)


def _turned(cache: torch.Tensor, by_dim: bool) -> torch.Tensor:
    rows = cache.view(torch.uint8)
    entries, scales = rows[..., :-SCALE_BYTES], rows[..., -SCALE_BYTES:]
    entries = entries.transpose(2, 3) if by_dim else entries
    return torch.cat([entries.flatten(2), scales.flatten(2)], dim=2).view(cache.dtype).view(cache.shape)

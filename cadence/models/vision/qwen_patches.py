"""Patches of a picture, or of two frames, in the order in which Qwen's towers take them.

Patches that become one vector stay together: they are a cell, merge x merge of them. Cells of a window come one after
another, and windows line by line; without windows, cells do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch


@dataclass(frozen=True, slots=True)
class CellOrder:
    """Of the cells of several contents."""

    cells_np: npt.NDArray[np.int64]  # [cells]: which of all, line by line
    places_np: npt.NDArray[np.int64]  # [patches, 2]: line and column of each patch in its content
    wholes: tuple[int, ...]  # patches of each content
    windows: tuple[int, ...]  # of each window; (): there are none


def cell_order(grids: Sequence[tuple[int, ...]], merge: int, window: int) -> CellOrder:
    """grids: patches of each content, each way; window: cells each way, 0 = none"""
    cells, places, windows, before = [], [], [], 0
    for height, width in grids:
        lines_np, columns_np = np.divmod(np.arange(height // merge * (width // merge)), width // merge)
        order_np = np.arange(len(lines_np))
        if window:
            own_np = lines_np // window * width + columns_np // window  # the window of each cell
            order_np = np.argsort(own_np, kind="stable")
            windows += (np.unique(own_np, return_counts=True)[1] * merge**2).tolist()
        corner_np = np.stack([lines_np, columns_np], axis=1)[order_np] * merge
        inner_np = np.stack(np.divmod(np.arange(merge**2), merge), axis=1)
        places.append((corner_np[:, None] + inner_np).reshape(-1, 2))
        cells.append(order_np + before)
        before += len(order_np)
    wholes = tuple(height * width for height, width in grids)
    return CellOrder(np.concatenate(cells), np.concatenate(places), wholes, tuple(windows))


def patches_of(frames: torch.Tensor, patch: int, merge: int, depth: int) -> torch.Tensor:
    """frames [n, 3, H, W], at most `depth`: the last stands for those that lack
    -> [patches, 3 * depth * patch * patch], cells line by line"""
    frames = torch.cat([frames, frames[-1:].expand(depth - frames.shape[0], -1, -1, -1)])
    height, width = (size // (patch * merge) for size in frames.shape[2:])
    parts = frames.reshape(depth, 3, height, merge, patch, width, merge, patch)
    return parts.permute(2, 5, 3, 6, 1, 0, 4, 7).reshape(height * width * merge**2, -1)


def axial_turns(places: torch.Tensor, head_dim: int) -> torch.Tensor:
    """places [n, 2] int64 -> [n, head_dim] float32, cosines and sines: the first half of each turns by lines, the
    second by columns"""
    exponents = torch.arange(0, head_dim // 2, 2, dtype=torch.float32, device=places.device) / (head_dim // 2)
    angles = (places[:, :, None].float() * (1.0 / 10_000.0**exponents)).flatten(1)
    return torch.cat([angles.cos(), angles.sin()], dim=1)

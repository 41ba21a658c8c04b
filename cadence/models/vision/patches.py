"""Pixels as a tower's first map takes them."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from cadence.models.layers.linear import Linear


@dataclass(frozen=True, slots=True)
class PixelScale:
    """How pixels become numbers: (pixel * factor - mean) / std, in float32, as processors of images do."""

    factor: float
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def of(self, pixels: torch.Tensor) -> torch.Tensor:
        """pixels [H, W, 3] uint8, or [3, H, W] float32 of which this was made -> [3, H, W] float32"""
        if pixels.dtype is not torch.uint8:
            return pixels
        mean, std = (torch.tensor(values, device=pixels.device)[:, None, None] for values in (self.mean, self.std))
        return (pixels.permute(2, 0, 1).float() * self.factor - mean) / std


class PatchLinear(Linear):
    """A convolution whose steps are as long as its kernel, as a product with patches."""

    inner = False


def patches(values: torch.Tensor, size: int) -> torch.Tensor:
    """values [C, H, W] -> [H // size * (W // size), C * size * size], line by line"""
    return values.unfold(1, size, size).unfold(2, size, size).permute(1, 2, 0, 3, 4).flatten(2).flatten(0, 1)

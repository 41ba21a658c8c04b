"""Pixels as bytes where a tower's own constants make numbers of them, as numbers where a model's files have others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from cadence.core.inputs.pixel_means import Channels
from cadence.media.resize import Pixels

FACTOR = 1 / 255  # of every tower here


@dataclass(frozen=True, slots=True)
class PixelNumbers:
    """(pixel * factor - mean) / std"""

    factor: float
    mean: npt.NDArray[np.float32]  # [3]
    std: npt.NDArray[np.float32]  # [3]
    by_tower: bool  # the tower computes it of bytes

    @classmethod
    def read(cls, settings: Mapping[str, Any], mean: Channels, std: Channels) -> PixelNumbers:
        """mean, std: the tower's, which count where files name none"""
        plain = (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)
        told = (settings.get("image_mean") or mean, settings.get("image_std") or std)
        means, stds = (_channels(each) for each in (told if settings.get("do_normalize", True) else plain))
        factor = float(settings.get("rescale_factor") or FACTOR) if settings.get("do_rescale", True) else 1.0
        usual = abs(factor - FACTOR) < 1e-9 and np.allclose(means, mean, 0, 1e-7) and np.allclose(stds, std, 0, 1e-7)
        return cls(factor, means, stds, bool(usual))

    def of(self, pixels_np: Pixels) -> npt.NDArray[Any]:
        """pixels [..., H, W, 3] -> themselves, or [..., 3, H, W] float32 as processors of images compute them"""
        if self.by_tower:
            return pixels_np
        numbers_np = (pixels_np.astype(np.float64) * self.factor).astype(np.float32)
        return np.moveaxis((numbers_np - self.mean) / self.std, -1, -3)


def _channels(values: Any) -> npt.NDArray[np.float32]:
    listed = values if isinstance(values, list | tuple) else [values] * 3
    return np.array(listed, dtype=np.float32)

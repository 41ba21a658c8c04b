"""A picture as models see it: RGB, upright, without transparency."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256

import numpy as np
import numpy.typing as npt

from cadence.core.inputs.media import IMAGE

Pixels = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True, eq=False)
class Picture:
    pixels_np: Pixels  # [H, W, 3]
    digest: str  # of shape and bytes, as hexadecimal digits; or what the user says stands for them

    @classmethod
    def of(cls, pixels_np: Pixels, digest: str = "") -> Picture:
        pixels_np = np.ascontiguousarray(pixels_np)
        return cls(pixels_np, digest or digest_of(IMAGE, pixels_np))

    @property
    def num_pixels(self) -> int:
        height, width, _ = self.pixels_np.shape
        return int(height * width)


def digest_of(kind: str, values_np: Pixels, more: str = "") -> str:
    digest = sha256(f"{kind}/{values_np.shape}/{more}/".encode())
    digest.update(np.ascontiguousarray(values_np).data)
    return digest.hexdigest()

"""How formats store the scales of a matrix: which of all scales there are."""

from __future__ import annotations

from typing import Protocol

import torch

_E4M3_LEAST, _E4M3_MOST = 2.0**-9, 448.0
_E8M0_LEAST, _E8M0_MOST = -127, 127  # powers of two; 128 would be no number
_E2M1_MOST = 6.0


class ScaleCode(Protocol):
    def whole(self, largest: float) -> float:
        """What stored scales are divided by, of a matrix whose largest entry has this magnitude."""
        ...

    def nearest(self, scales: torch.Tensor, whole: float) -> torch.Tensor:
        """float32 -> scales that can be stored, float32, positive"""
        ...

    def stored(self, scales: torch.Tensor, whole: float) -> torch.Tensor:
        """What `nearest` gave, as it lies in the file."""
        ...


class FloatScales:
    """In a floating type."""

    def __init__(self, dtype: torch.dtype) -> None:
        self._dtype = dtype
        self._least = 2.0**-24 if dtype is torch.float16 else torch.finfo(dtype).tiny
        self._most = torch.finfo(dtype).max

    def whole(self, largest: float) -> float:
        return 1.0

    def nearest(self, scales: torch.Tensor, whole: float) -> torch.Tensor:
        return scales.clamp(self._least, self._most).to(self._dtype).float()

    def stored(self, scales: torch.Tensor, whole: float) -> torch.Tensor:
        return scales.to(self._dtype)


class E4M3Scales:
    """float8, divided by one float32 number for the whole matrix."""

    def whole(self, largest: float) -> float:
        exact = _E4M3_MOST * _E2M1_MOST / largest if largest > 0.0 else 1.0
        return float(torch.tensor(exact, dtype=torch.float32).clamp(2.0**-100, 2.0**100))

    def nearest(self, scales: torch.Tensor, whole: float) -> torch.Tensor:
        return self.stored(scales, whole).float() / whole

    def stored(self, scales: torch.Tensor, whole: float) -> torch.Tensor:
        return (scales * whole).clamp(_E4M3_LEAST, _E4M3_MOST).to(torch.float8_e4m3fn)


class PowerScales:
    """Powers of two: the next one above."""

    def whole(self, largest: float) -> float:
        return 1.0

    def nearest(self, scales: torch.Tensor, whole: float) -> torch.Tensor:
        return torch.exp2(self._exponents(scales))

    def stored(self, scales: torch.Tensor, whole: float) -> torch.Tensor:
        return (self._exponents(scales) + 127).to(torch.uint8)

    def _exponents(self, scales: torch.Tensor) -> torch.Tensor:
        tiny = torch.finfo(torch.float32).tiny
        return scales.clamp(min=tiny).log2().ceil().clamp(_E8M0_LEAST + 1, _E8M0_MOST)

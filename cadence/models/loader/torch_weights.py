"""Weights that torch saved: heads are often published so. Only tensors are read; a file that holds anything else is
refused by torch itself."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from pathlib import Path

import torch

from cadence.core.errors import WeightsError
from cadence.core.shown import cut
from cadence.kernels.interface.scaled_numbers import ScaledNumbers
from cadence.models.loader.source import KVScales

NAMES = ("pytorch_model.bin", "medusa_lm_head.pt")


class TorchWeights:
    """A `WeightsSource`."""

    def __init__(self, path: Path) -> None:
        try:
            held = torch.load(path, map_location="cpu", weights_only=True)
        except (pickle.UnpicklingError, RuntimeError, OSError, EOFError, ValueError, KeyError) as error:
            raise WeightsError(f"{path}: no file of tensors, or a corrupt one: {cut(str(error))}") from None
        if not isinstance(held, dict) or not all(isinstance(value, torch.Tensor) for value in held.values()):
            raise WeightsError(f"{path}: it must hold tensors by their names, and nothing else")
        self._held: dict[str, torch.Tensor] = {str(name): value for name, value in held.items()}

    def names(self) -> Sequence[str]:
        return list(self._held)

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._held[name].shape)

    def load(self, name: str) -> torch.Tensor:
        return self._held[name]

    def blocks(self, name: str, transposed: bool) -> tuple[str, torch.Tensor] | None:
        return None

    def numbers(self, name: str) -> ScaledNumbers | None:
        return None

    def order(self, name: str) -> torch.Tensor | None:
        return None

    def kv_scales(self) -> KVScales:
        return {}

    def release(self, name: str) -> None:
        """All of it goes with the source."""

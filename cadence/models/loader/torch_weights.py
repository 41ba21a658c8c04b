"""Weights that torch saved: older models and heads are published so. Only tensors are read; a file that holds anything
else is refused by torch itself."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from pickle import UnpicklingError
from zipfile import is_zipfile

import torch

from cadence.core.errors import WeightsError
from cadence.core.shown import cut, shown
from cadence.models.loader.shard_index import read_index
from cadence.models.loader.source import PlainSource

_NAMES = ("pytorch_model.bin", "medusa_lm_head.pt")
_INDEX = "pytorch_model.bin.index.json"
_MOST_NAME = 256  # characters


def saved_files(directory: Path) -> list[Path]:
    """Those that torch saved: one, or shards named by an index; [] where there are safetensors files, or nothing."""
    if any(directory.glob("*.safetensors")):
        return []
    if (index := directory / _INDEX).is_file():
        return [directory / shard for shard in sorted(set(read_index(index).values()))]
    return [path for name in _NAMES if (path := directory / name).is_file()][:1]


class TorchWeights(PlainSource):
    """A `WeightsSource`. Files of torch 1.6 and later are mapped, older ones are read whole."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._held: dict[str, torch.Tensor] = {}
        for path in paths:
            self._held |= _read(path)

    def names(self) -> Sequence[str]:
        return list(self._held)

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._held[name].shape)

    def load(self, name: str) -> torch.Tensor:
        return self._held[name]

    def release(self, name: str) -> None:
        """All of it goes with the source."""


def _read(path: Path) -> dict[str, torch.Tensor]:
    try:
        with warnings.catch_warnings(action="ignore"):  # of what is refused in the end
            held = torch.load(path, map_location="cpu", weights_only=True, mmap=is_zipfile(path))
    except UnpicklingError:  # torch advises to run what is in the file
        raise WeightsError(f"{path}: no file of tensors, or a corrupt one: it holds more than tensors") from None
    except Exception as error:  # whatever the bytes of a file make torch's reader trip over
        reason = cut(next(iter(str(error).splitlines()), "") or type(error).__name__)
        raise WeightsError(f"{path}: no file of tensors, or a corrupt one: {reason}") from None
    if not isinstance(held, dict) or not all(isinstance(value, torch.Tensor) for value in held.values()):
        raise WeightsError(f"{path}: it must hold tensors by their names, and nothing else")
    for name, tensor in held.items():
        _check_plain(path, str(name), tensor)
    return {str(name): value for name, value in held.items()}


def _check_plain(path: Path, name: str, tensor: torch.Tensor) -> None:
    """Numbers in memory, each with bytes of its own: a few bytes could stand for more numbers than fit anywhere."""
    if len(name) > _MOST_NAME:
        raise WeightsError(f"{path}: the name of a tensor has {len(name)} characters, at most {_MOST_NAME}")
    real = not (tensor.is_quantized or tensor.is_complex())
    plain = real and tensor.layout is torch.strided and tensor.device.type == "cpu"
    if not plain or tensor.nbytes > tensor.untyped_storage().nbytes():
        raise WeightsError(f"{path}: tensor {shown(name)} is not stored as plain numbers")

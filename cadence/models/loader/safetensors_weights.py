"""Weights in safetensors files: one, or shards named by an index."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from cadence.core.errors import WeightsError

_SINGLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"


class SafetensorsWeights:
    """Files are opened (mapped, not read) at once, so that a bad one is found before any weight is loaded."""

    def __init__(self, directory: Path) -> None:
        self._where: dict[str, Path] = {}  # tensor -> file
        self._files: dict[Path, Any] = {}  # open handles
        index = directory / _INDEX
        if index.is_file():
            self._open_shards(directory, _read_index(index))
        else:
            for path in _unindexed(directory):
                self._where.update(dict.fromkeys(self._open(path).keys(), path))

    def names(self) -> Sequence[str]:
        return list(self._where)

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._files[self._where[name]].get_slice(name).get_shape())

    def load(self, name: str) -> torch.Tensor:
        path = self._where[name]
        try:
            return self._files[path].get_tensor(name)
        except (SafetensorError, OSError) as error:
            raise WeightsError(f"{path}: tensor {name!r} is not readable: {error}") from None

    def _open_shards(self, directory: Path, index: dict[str, str]) -> None:
        for shard in sorted(set(index.values())):
            path = directory / shard
            held = set(self._open(path).keys())
            wanted = [name for name, file in index.items() if file == shard]
            absent = [name for name in wanted if name not in held]
            if absent:
                raise WeightsError(f"{path}: {_INDEX} places {absent[0]!r} here, but it is not in the file")
            self._where.update(dict.fromkeys(wanted, path))

    def _open(self, path: Path) -> Any:
        if not path.is_file():
            raise WeightsError(f"{path}: no such weights file")
        try:
            self._files[path] = safe_open(path, framework="pt", device="cpu")
        except (SafetensorError, OSError) as error:
            raise WeightsError(f"{path}: truncated or corrupt safetensors file: {error}") from None
        return self._files[path]


def _read_index(path: Path) -> dict[str, str]:
    try:
        index = json.loads(path.read_text(encoding="utf-8"))["weight_map"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise WeightsError(f"{path}: not an index of shards: {error!r}") from None
    if not isinstance(index, dict) or not all(_is_file_name(file) for file in index.values()):
        raise WeightsError(f"{path}: 'weight_map' must map tensor names to file names")
    return index


def _is_file_name(value: object) -> bool:
    """A shard lies beside its index: no path that could lead elsewhere."""
    return isinstance(value, str) and Path(value).name == value


def _unindexed(directory: Path) -> list[Path]:
    single = directory / _SINGLE
    if single.is_file():
        return [single]
    found = sorted(path for path in directory.glob("*.safetensors") if not path.name.startswith("consolidated"))
    if not found:
        raise WeightsError(f"{directory}: no *.safetensors weights here")
    if len(found) > 1:
        raise WeightsError(f"{directory}: several *.safetensors files ({found[0].name}, …) but no {_INDEX}")
    return found

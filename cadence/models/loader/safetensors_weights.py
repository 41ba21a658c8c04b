"""Weights in safetensors files: one, or shards named by an index."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from cadence.config.files.sharded_state import index_name
from cadence.core.errors import WeightsError
from cadence.models.loader.safetensors_file import SafetensorsFile
from cadence.models.loader.shard_index import read_index
from cadence.models.loader.source import PlainSource

_SINGLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"


class SafetensorsWeights(PlainSource):
    """Files are opened (mapped, not read) at once, so that a bad one is found before any weight is loaded."""

    def __init__(self, directory: Path) -> None:
        self._where: dict[str, SafetensorsFile] = {}  # by tensor
        index = directory / _INDEX
        if index.exists():
            self._open_shards(directory, read_index(index))
        else:
            for path in _unindexed(directory):
                file = SafetensorsFile(path)
                self._where.update(dict.fromkeys(file.names(), file))

    def names(self) -> Sequence[str]:
        return list(self._where)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._where[name].shape(name)

    def load(self, name: str) -> torch.Tensor:
        return self._where[name].load(name)

    def stored(self, name: str) -> torch.Tensor:
        """As it lies in the file, of integers too."""
        return self._where[name].stored(name)

    def stored_type(self, name: str) -> str:
        return self._where[name].stored_type(name)

    def release(self, name: str) -> None:
        self._where[name].release(name)

    def _open_shards(self, directory: Path, index: dict[str, str]) -> None:
        for shard in sorted(set(index.values())):
            file = SafetensorsFile(directory / shard)
            held = file.names()
            wanted = {name for name, holder in index.items() if holder == shard}
            absent = sorted(wanted - set(held))
            if absent:
                raise WeightsError(f"{file.path}: {_INDEX} places {absent[0]!r} here, but it is not in the file")
            self._where.update({name: file for name in held if name in wanted})


def _unindexed(directory: Path) -> list[Path]:
    single = directory / _SINGLE
    if single.is_file():
        return [single]
    found = sorted(path for path in directory.glob("*.safetensors") if not path.name.startswith("consolidated"))
    if not found:
        raise WeightsError(f"{directory}: no *.safetensors weights here, and no pytorch_model.bin")
    if (directory / index_name(0)).is_file():
        raise WeightsError(f"{directory}: sharded state of ranks, for load_format=sharded_state", "load_format")
    if len(found) > 1:
        raise WeightsError(f"{directory}: several *.safetensors files ({found[0].name}, …) but no {_INDEX}")
    return found

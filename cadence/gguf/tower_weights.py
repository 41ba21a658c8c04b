"""The weights of a model whose tower lies in a GGUF file of its own, as one Hugging Face checkpoint would hold them."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from cadence.core.errors import WeightsError
from cadence.gguf.dequant import dequantize
from cadence.gguf.file import GGUFFile, GGUFTensor
from cadence.gguf.metadata import Metadata
from cadence.gguf.tower_config import projector
from cadence.gguf.tower_names import FFN_DOWN, FFN_UP, TowerPlace, tower_place
from cadence.gguf.weights import GGUFWeights


@dataclass(slots=True)
class _Parts:
    """What makes up one tensor of a checkpoint."""

    place: TowerPlace
    tensors: dict[int, GGUFTensor] = field(default_factory=dict)


class TowerWeights:
    """Tensors are dequantised one by one, when asked for."""

    def __init__(self, file: GGUFFile) -> None:
        self._file = file
        self._places: dict[str, _Parts] = {}
        meta = Metadata(file)
        kind, hidden = projector(meta), meta.integer("vision.embedding_length")
        for tensor in file.tensors.values():
            place = tower_place(kind, _unswapped(tensor.name, file, hidden))
            self._places.setdefault(place.hf, _Parts(place)).tensors[place.part] = tensor
        for name, parts in self._places.items():
            self._check(name, parts)

    def _check(self, name: str, parts: _Parts) -> None:
        shapes = {tensor.shape[1:] for tensor in parts.tensors.values()}
        if len(parts.tensors) != parts.place.parts or len(shapes) != 1:
            raise WeightsError(f"{self._file.path}: tensor {name!r} is not whole, or its parts differ")

    def names(self) -> list[str]:
        return list(self._places)

    def shape(self, name: str) -> tuple[int, ...]:
        tensors = self._tensors(name)
        rows, *rest = tensors[0].shape
        if len(tensors) > 1 and rest[2:]:  # frames of a convolution
            return (rows, rest[0], len(tensors), *rest[1:])
        return (sum(tensor.shape[0] for tensor in tensors), *rest)

    def load(self, name: str) -> torch.Tensor:
        """A new float32 CPU tensor of `shape(name)`."""
        tensors = self._tensors(name)
        values = [self._values(tensor) for tensor in tensors]
        if self._places[name].place.plus_one:
            return values[0].sub_(1.0)
        if len(values) == 1:
            return values[0]
        return torch.stack(values, dim=2) if values[0].dim() == 4 else torch.cat(values)

    def blocks(self, name: str, transposed: bool) -> tuple[str, torch.Tensor] | None:
        parts, tensors = self._places[name], self._tensors(name)
        if parts.place.plus_one or transposed or len({tensor.type for tensor in tensors}) > 1:
            return None
        raw = [torch.from_numpy(self._file.data(tensor)).view(torch.uint8).reshape(-1) for tensor in tensors]
        return tensors[0].type.name, raw[0] if len(raw) == 1 else torch.cat(raw)

    def release(self, name: str) -> None:
        for tensor in self._tensors(name):
            self._file.release(tensor)

    def _values(self, tensor: GGUFTensor) -> torch.Tensor:
        return dequantize(torch.from_numpy(self._file.data(tensor)), tensor.type, tensor.shape, tensor.name)

    def _tensors(self, name: str) -> list[GGUFTensor]:
        parts = self._places[name]
        return [parts.tensors[part] for part in range(parts.place.parts)]


class WeightsWithTower:
    """Of a language model's file and of its tower's."""

    def __init__(self, text: GGUFWeights, tower: TowerWeights) -> None:
        self._text, self._tower = text, tower
        self._of_tower = frozenset(tower.names())

    def names(self) -> list[str]:
        return [*self._text.names(), *self._tower.names()]

    def shape(self, name: str) -> tuple[int, ...]:
        return self._source(name).shape(name)

    def load(self, name: str) -> torch.Tensor:
        return self._source(name).load(name)

    def blocks(self, name: str, transposed: bool) -> tuple[str, torch.Tensor] | None:
        return self._source(name).blocks(name, transposed)

    def numbers(self, name: str) -> None:
        return None

    def order(self, name: str) -> torch.Tensor | None:
        return None

    def kv_scales(self) -> dict[str, tuple[float, float]]:
        return {}

    def release(self, name: str) -> None:
        self._source(name).release(name)

    def _source(self, name: str) -> GGUFWeights | TowerWeights:
        return self._tower if name in self._of_tower else self._text


def _unswapped(name: str, file: GGUFFile, hidden: int) -> str:
    """Older files call the two maps of a layer by each other's names: then "down" takes vectors of `hidden` entries."""
    for one, other in ((FFN_UP, FFN_DOWN), (FFN_DOWN, FFN_UP)):
        before, found, kind = name.partition(f".{one}.")
        down = file.tensors.get(f"{before}.{FFN_DOWN}.weight")
        if found and f"{before}.ffn_gate.weight" not in file.tensors and down is not None and down.shape[-1] == hidden:
            return f"{before}.{other}.{kind}"
    return name

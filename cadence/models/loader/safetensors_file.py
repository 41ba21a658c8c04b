"""One safetensors file: checked by its own library, then mapped, so that what was read can leave memory again."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from cadence.core.errors import WeightsError
from cadence.core.mapped_file import map_file, release
from cadence.core.shown import cut

_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "I64": torch.int64,
}
_STORED_DTYPES = _DTYPES | {"I32": torch.int32, "I8": torch.int8, "U8": torch.uint8}


@dataclass(frozen=True, slots=True)
class _Place:
    dtype: str
    shape: tuple[int, ...]
    start: int  # bytes from the beginning of the file
    nbytes: int


class SafetensorsFile:
    def __init__(self, path: Path) -> None:
        self.path = path
        if not path.is_file():
            raise WeightsError(f"{path}: no such weights file")
        try:
            with safe_open(path, framework="pt", device="cpu"):
                pass  # it has looked at the header and at every offset
        except (SafetensorError, OSError) as error:
            raise WeightsError(f"{path}: truncated or corrupt safetensors file: {cut(str(error))}") from None
        except RuntimeError as error:  # torch, where the system maps no file of that size
            raise WeightsError(f"{path}: cannot be read: {cut(str(error))}") from None
        self._bytes = map_file(path)
        size = int.from_bytes(self._bytes[:8], "little")
        header = json.loads(self._bytes[8 : 8 + size])
        self._places = {
            name: _place(entry, data_start=8 + size) for name, entry in header.items() if name != "__metadata__"
        }

    def names(self) -> list[str]:
        """In the order of their bytes."""
        return sorted(self._places, key=lambda name: self._places[name].start)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._places[name].shape

    def dtype(self, name: str) -> torch.dtype:
        """Of the values that `load` would read."""
        return self._type(name, _DTYPES)

    def load(self, name: str) -> torch.Tensor:
        """Values, a view of the file."""
        return self._view(name, _DTYPES)

    def stored(self, name: str) -> torch.Tensor:
        """What quantised values are made of, a view of the file."""
        return self._view(name, _STORED_DTYPES)

    def stored_type(self, name: str) -> str:
        return self._places[name].dtype

    def _view(self, name: str, types: dict[str, torch.dtype]) -> torch.Tensor:
        place, dtype = self._places[name], self._type(name, types)
        if place.nbytes == 0:
            return torch.empty(place.shape, dtype=dtype)
        raw = torch.frombuffer(self._bytes, dtype=torch.uint8, count=place.nbytes, offset=place.start)
        if place.start % dtype.itemsize:
            raw = raw.clone()
        return raw.view(dtype).view(place.shape)

    def _type(self, name: str, types: dict[str, torch.dtype]) -> torch.dtype:
        stored = self._places[name].dtype
        if stored not in types:
            raise WeightsError(f"{self.path}: tensor {name!r} has type {stored}; types read: {', '.join(types)}")
        return types[stored]

    def raw(self, name: str) -> torch.Tensor:
        """[bytes] uint8, a view of the file."""
        place = self._places[name]
        return torch.frombuffer(self._bytes, dtype=torch.uint8, count=place.nbytes, offset=place.start)

    def num_bytes(self, name: str) -> int:
        return self._places[name].nbytes

    def release(self, name: str) -> None:
        place = self._places[name]
        release(self._bytes, place.start, place.nbytes)


def _place(entry: dict, data_start: int) -> _Place:
    begin, end = entry["data_offsets"]
    return _Place(entry["dtype"], tuple(entry["shape"]), data_start + begin, end - begin)

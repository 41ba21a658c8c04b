"""What a GGUF file says of a model, read with types: every value is the file's, and may be anything."""

from __future__ import annotations

from typing import Any

import numpy as np

from cadence.core.errors import WeightsError
from cadence.core.shown import shown
from cadence.gguf.file import GGUFFile


class Metadata:
    """The keys of one architecture, without their prefix."""

    def __init__(self, file: GGUFFile) -> None:
        self.file = file
        self.arch = file.require("general.architecture")
        if not isinstance(self.arch, str):
            raise self.wrong("general.architecture", "a text", self.arch)

    def get(self, key: str, default: Any = None) -> Any:
        return self.file.metadata.get(f"{self.arch}.{key}", default)

    def number(self, key: str, default: float | None = None) -> Any:
        """1e-05, where the file has 9.9999997e-06."""
        value = self.get(key, default)
        if value is not None and (not isinstance(value, int | float) or isinstance(value, bool)):
            raise self.wrong(f"{self.arch}.{key}", "a number", value)
        with np.errstate(over="ignore"):  # to infinity, which no field may be
            return float(str(np.float32(value))) if isinstance(value, float) else value

    def wrong(self, key: str, expected: str, found: object) -> WeightsError:
        return WeightsError(f"{self.file.path}: {key} must be {expected}, found {shown(found)}")

    def integer(self, key: str, default: int = -1) -> int:
        """A count, of which the default -1 says that the file must give it."""
        value = self.get(key) if default >= 0 else self.file.require(f"{self.arch}.{key}")
        if value is None:
            return default
        if not isinstance(value, int) or isinstance(value, bool):
            raise self.wrong(f"{self.arch}.{key}", "one whole number", value)
        return value

    def text(self, key: str) -> str:
        """ "" where the file has none."""
        value = self.get(key)
        if value is not None and not isinstance(value, str):
            raise self.wrong(f"{self.arch}.{key}", "a text", value)
        return value or ""

    def flag(self, key: str) -> bool:
        value = self.get(key, False)
        if not isinstance(value, bool):
            raise self.wrong(f"{self.arch}.{key}", "true or false", value)
        return value

    def has_tensor(self, name: str) -> bool:
        return name in self.file.tensors

    def floats(self, name: str) -> list[float]:
        """A small float32 tensor that is configuration rather than weights."""
        tensor = self.file.tensors[name]
        if tensor.type.name != "F32":
            raise WeightsError(f"{self.file.path}: tensor {name!r} must be F32, is {tensor.type.name}")
        values: list[float] = self.file.data(tensor).view("<f4").tolist()
        return values

    def numbers(self, key: str) -> list[Any] | None:
        """Of an array; None where the file has none."""
        value = self.get(key)
        if value is None:
            return None
        if not isinstance(value, np.ndarray) or value.dtype.kind not in "iuf":
            raise self.wrong(f"{self.arch}.{key}", "a list of numbers", value)
        return [float(str(each)) if value.dtype.kind == "f" else int(each) for each in value]

    def per_layer(self, key: str) -> list[int]:
        """A count of each layer; one number is that of all."""
        value, layers = self.get(key), self.integer("block_count")
        counts = [value] * layers if isinstance(value, int) and not isinstance(value, bool) else self.numbers(key) or []
        if len(counts) != layers or not all(isinstance(count, int) for count in counts):
            raise self.wrong(f"{self.arch}.{key}", f"a whole number, or {layers} of them", value)
        return counts

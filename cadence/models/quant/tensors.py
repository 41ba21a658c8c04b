"""The tensors that a quantised checkpoint stores for one module, checked as they are asked for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import torch

from cadence.core.errors import WeightsError


class StoredTensors(Protocol):
    """Tensors of files, by their whole names."""

    def shape(self, name: str) -> tuple[int, ...]: ...

    def stored_type(self, name: str) -> str:
        """As the header has it: "I32", "F8_E4M3"."""
        ...

    def stored(self, name: str) -> torch.Tensor:
        """On the CPU, of whatever type; it may be a view of the file."""
        ...


class ModuleTensors:
    """Of one module, by what follows its name: "qweight", "weight_scale"."""

    def __init__(self, module: str, names: Mapping[str, str], source: StoredTensors, where: str) -> None:
        """names: whole ones, by what follows the module's; where: the files, for messages"""
        self.module = module
        self._names = names
        self._source = source
        self._where = where

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._names.values())

    def __contains__(self, part: str) -> bool:
        return part in self._names

    def shape(self, part: str) -> tuple[int, ...]:
        return tuple(self._source.shape(self._whole(part)))

    def stored_type(self, part: str) -> str:
        return self._source.stored_type(self._whole(part))

    def load(self, part: str) -> torch.Tensor:
        return self._source.stored(self._whole(part))

    def check(self, part: str, types: tuple[str, ...], *shapes: tuple[int, ...]) -> None:
        """Looks at the header alone. shapes: those it may have; none = any."""
        found, shape = self.stored_type(part), self.shape(part)
        if found not in types:
            raise self.wrong(part, f"has type {found}, where {' or '.join(types)} is expected")
        if shapes and shape not in shapes:
            expected = " or ".join(str(list(each)) for each in dict.fromkeys(shapes))
            raise self.wrong(part, f"has shape {list(shape)}, where {expected} is expected")

    def matrix_shape(self, part: str, types: tuple[str, ...]) -> tuple[int, int]:
        """Of a tensor of two dimensions with something in it."""
        self.check(part, types)
        shape = self.shape(part)
        if len(shape) != 2 or min(shape) < 1:
            raise self.wrong(part, f"has shape {list(shape)}, where a matrix is expected")
        return shape[0], shape[1]

    def finite(self, part: str) -> torch.Tensor:
        """The tensor, of which every number is one."""
        found = self.load(part)
        if not torch.isfinite(found.float()).all():
            raise self.wrong(part, "holds scales that are not finite")
        return found

    def wrong(self, part: str, what: str) -> WeightsError:
        return WeightsError(f"{self._where}: tensor {self._names.get(part, f'{self.module}.{part}')!r} {what}")

    def _whole(self, part: str) -> str:
        if part not in self._names:
            raise WeightsError(
                f"{self._where}: {self.module!r} is quantised, but tensor '{self.module}.{part}' is missing"
            )
        return self._names[part]

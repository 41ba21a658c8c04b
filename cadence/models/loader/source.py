"""Where weights come from: anything that lists tensors by their checkpoint names and hands them out one by one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch

from cadence.kernels.interface.scaled_numbers import ScaledNumbers

KVScales = dict[str, tuple[float, float]]  # by layer ("layers.3"): of its keys, of its values


class WeightsSource(Protocol):
    def names(self) -> Sequence[str]:
        """All tensors, in an order that reads the files from front to back."""
        ...

    def shape(self, name: str) -> tuple[int, ...]: ...

    def load(self, name: str) -> torch.Tensor:
        """The tensor on the CPU, in any floating dtype; it may be a view of the file, good until `release`."""
        ...

    def blocks(self, name: str, transposed: bool) -> tuple[str, torch.Tensor] | None:
        """(GGUF type, bytes) of the tensor, or of its transpose, as it lies in the file; None = not in that form."""
        ...

    def numbers(self, name: str) -> ScaledNumbers | None:
        """The tensor as a quantised checkpoint stores it, columns in `order`; None = it is not in that form."""
        ...

    def order(self, name: str) -> torch.Tensor | None:
        """[cols] integers: column j of blocks and numbers is column order[j] of the tensor; None = in order."""
        ...

    def kv_scales(self) -> KVScales:
        """Of a float8 KV cache; {} = the source has none."""
        ...

    def release(self, name: str) -> None:
        """The tensor is no longer wanted: what the source holds of it in memory may go."""
        ...


class PlainSource:
    """What a source of values alone says of other forms."""

    def blocks(self, name: str, transposed: bool) -> tuple[str, torch.Tensor] | None:
        return None

    def numbers(self, name: str) -> ScaledNumbers | None:
        return None

    def order(self, name: str) -> torch.Tensor | None:
        return None

    def kv_scales(self) -> KVScales:
        return {}

"""Matrices of one input that are of different kinds, one below the other."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from cadence.kernels.interface.matrix import ComposedMatrix, PackedMatrix


class JoinedMatrix(ComposedMatrix):
    """A `PackedMatrix`: each part multiplies for itself."""

    def __init__(self, parts: Sequence[PackedMatrix]) -> None:
        self.rows, self.cols = sum(part.rows for part in parts), parts[0].cols
        self._parts = tuple(parts)
        self._sizes = [part.rows for part in parts]

    def held(self) -> Sequence[object]:
        return self._parts

    def linear(self, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        biases = [None] * len(self._parts) if bias is None else bias.split(self._sizes)
        return torch.cat([part.linear(x, own) for part, own in zip(self._parts, biases, strict=True)], dim=1)

    def logits(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([part.logits(x) for part in self._parts], dim=1)

    def lookup(self, ids: torch.Tensor, scale: float) -> torch.Tensor:
        out, first = self._parts[0].lookup(ids.clamp(max=self._sizes[0] - 1), scale), self._sizes[0]
        for part in self._parts[1:]:
            own = part.lookup((ids - first).clamp(0, part.rows - 1), scale)
            out = torch.where((ids >= first).unsqueeze(1), own, out)
            first += part.rows
        return out

    def values(self, first: int, count: int) -> torch.Tensor:
        found, start = [], 0
        for part in self._parts:
            begin, end = max(first, start), min(first + count, start + part.rows)
            if begin < end:
                found.append(part.values(begin - start, end - begin))
            start += part.rows
        return torch.cat(found)

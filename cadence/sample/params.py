"""The sampling scalars of every row."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cadence.core.contract.step import NewRow
from cadence.core.sampling_params import SamplingParams
from cadence.device.base import Device
from cadence.device.staged import RowScalars


class SamplingTable:
    """A `RequestTable`. Greedy rows hold temperature 1, so that dividing by it leaves their logits as they are."""

    def __init__(self, device: Device, num_rows: int, floats: Sequence[str] = ()) -> None:
        """floats: fields of `SamplingParams` that are kept as they are, under their names"""
        columns = {"seed": "i64", "top_k": "i32", "random": "i32", "temperature": "f32"}
        self.scalars = RowScalars(device, num_rows, columns | dict.fromkeys(floats, "f32"))
        self.random_np = np.zeros(num_rows, dtype=np.bool_)  # rows that need noise
        self._floats = tuple(floats)
        unset = self._floats_of(SamplingParams())
        for row in range(num_rows):  # a row named before it was added is greedy
            self.scalars.set(row, temperature=1.0, **unset)

    def add(self, row: int, request: NewRow) -> None:
        sampling = request.sampling
        self.random_np[row] = not sampling.greedy
        self.scalars.set(
            row,
            random=not sampling.greedy,
            seed=signed64(request.seed),
            temperature=1.0 if sampling.greedy else sampling.temperature,
            top_k=min(sampling.top_k, np.iinfo(np.int32).max),
            **self._floats_of(sampling),
        )

    def remove(self, row: int) -> None:
        """What a row without a request holds is never read."""

    def flush(self) -> None:
        self.scalars.flush()

    def _floats_of(self, sampling: SamplingParams) -> dict[str, float]:
        return {name: getattr(sampling, name) for name in self._floats}


def signed64(seed: int) -> int:
    """The same 64 bits as a signed number."""
    seed %= 1 << 64
    return seed - (1 << 64) if seed >= 1 << 63 else seed

"""Repetition, frequency and presence penalties, counted afresh in each step from the tokens on the device."""

from __future__ import annotations

import numpy as np
import torch

from cadence.core.contract.step import NewRow
from cadence.device.base import Device
from cadence.device.staged import RowScalars
from cadence.sample.context import SampleContext
from cadence.sample.lines import LineIndex, LinePicker

_OUTPUT = 1 << 32  # one occurrence in the output; occurrences in the prompt are counted in the low half
_MAX_COUNTERS = 1 << 24  # counters, and tokens counted, at once: 128 MiB


class Penalties:
    """A `RequestTable` and a `LogitsStep`. Counters exist only while it runs, for the rows that use it."""

    def __init__(self, device: Device, num_rows: int) -> None:
        self._scalars = RowScalars(device, num_rows, {"repetition": "f32", "frequency": "f32", "presence": "f32"})
        self._used_np = np.zeros(num_rows, dtype=np.bool_)
        self._max_len_np = np.zeros(num_rows, dtype=np.int64)  # most tokens the row can ever hold
        self._lines = LinePicker(device)

    def add(self, row: int, request: NewRow) -> None:
        sampling = request.sampling
        penalties = (sampling.repetition_penalty, sampling.frequency_penalty, sampling.presence_penalty)
        self._used_np[row] = penalties != (1.0, 0.0, 0.0)
        self._max_len_np[row] = request.max_len
        if self._used_np[row]:
            self._scalars.set(row, repetition=penalties[0], frequency=penalties[1], presence=penalties[2])

    def remove(self, row: int) -> None:
        self._used_np[row] = False

    def flush(self) -> None:
        self._scalars.flush()

    def active(self, rows_np: np.ndarray) -> bool:
        return bool(self._used_np[rows_np].any())

    def apply(self, logits: torch.Tensor, ctx: SampleContext) -> torch.Tensor:
        used_np = self._used_np[ctx.rows_np]
        width = min(int(self._max_len_np[ctx.rows_np][used_np].max()), ctx.tokens.shape[1])

        def penalise(part: torch.Tensor, lines: LineIndex) -> torch.Tensor:
            rows, lengths, prompt_lens = ctx.rows[lines], ctx.lengths[lines], ctx.prompt_lens[lines]
            at_once = max(_MAX_COUNTERS // max(part.shape[1], width), 1)
            pieces = []
            for start in range(0, part.shape[0], at_once):
                piece = slice(start, start + at_once)
                tokens = ctx.tokens[:, :width].index_select(0, rows[piece])
                counts = _count(tokens, lengths[piece], prompt_lens[piece], part.shape[1])
                pieces.append(self._penalised(part[piece], counts, rows[piece]))
            return torch.cat(pieces)

        return self._lines.change(logits, used_np, penalise)

    def _penalised(self, logits: torch.Tensor, counts: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        repetition, frequency, presence = (
            self._scalars.get(name)[rows, None] for name in ("repetition", "frequency", "presence")
        )
        weakened = torch.where(logits > 0, logits / repetition, logits * repetition)
        logits = torch.where(counts > 0, weakened, logits)
        in_output = (counts >> 32).to(torch.float32)
        return logits - frequency * in_output - presence * (in_output > 0)


def _count(tokens: torch.Tensor, lengths: torch.Tensor, prompt_lens: torch.Tensor, vocab_size: int) -> torch.Tensor:
    """tokens [n, width], lengths [n], prompt_lens [n] -> [n, vocab_size] int64: output << 32 | prompt occurrences."""
    positions = torch.arange(tokens.shape[1], device=tokens.device)
    known = positions < lengths[:, None]
    weights = torch.where(positions < prompt_lens[:, None], 1, _OUTPUT) * known
    counts = torch.zeros((tokens.shape[0], vocab_size), dtype=torch.int64, device=tokens.device)
    return counts.scatter_add_(1, (tokens * known).to(torch.int64), weights)

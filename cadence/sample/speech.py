"""`speech_rules`: the tokens that a transcript may go on with."""

from __future__ import annotations

import numpy as np
import torch

from cadence.core.contract.step import NewRow
from cadence.core.speech_rules import SpeechRules
from cadence.device.base import Device
from cadence.kernels.interface.ops import Ops
from cadence.kernels.interface.speech_lines import NO_TIMES, SpeechLines, WrittenTokens
from cadence.sample.context import SampleContext

_ANY_TIME = 2**31  # more steps than there are tokens


class SpeechTokens:
    """A `RequestTable` and a `LogitsStep`. All is read off the token table, so it holds for tokens that no host has
    seen yet."""

    def __init__(self, device: Device, ops: Ops, num_rows: int) -> None:
        self._device = device
        self._ops = ops
        self._rows: dict[int, SpeechRules] = {}
        self._used_np = np.zeros(num_rows, dtype=np.bool_)
        self._max_len_np = np.zeros(num_rows, dtype=np.int64)  # most tokens the row can ever hold
        self._rows_np: np.ndarray | None = None  # what _uploaded was made for; None = make it anew
        self._uploaded: SpeechLines

    def add(self, row: int, request: NewRow) -> None:
        self.remove(row)
        rules = request.sampling.speech_rules
        if rules is not None:
            self._rows[row] = rules
            self._used_np[row] = True
            self._max_len_np[row] = request.max_len
            self._rows_np = None

    def remove(self, row: int) -> None:
        if self._rows.pop(row, None) is not None:
            self._used_np[row] = False
            self._max_len_np[row] = 0
            self._rows_np = None

    def flush(self) -> None:
        """What a step needs is uploaded with it."""

    def active(self, rows_np: np.ndarray) -> bool:
        return bool(self._used_np[rows_np].any())

    def apply(self, logits: torch.Tensor, ctx: SampleContext) -> torch.Tensor:
        written = WrittenTokens(ctx.tokens, ctx.rows, ctx.lengths, ctx.prompt_lens)
        self._ops.apply_speech_rules(logits, self._gather(ctx.rows_np), written)
        return logits

    def _gather(self, rows_np: np.ndarray) -> SpeechLines:
        if self._rows_np is None or not np.array_equal(rows_np, self._rows_np):
            self._uploaded = self._upload(rows_np)
            self._rows_np = rows_np.copy()
        return self._uploaded

    def _upload(self, rows_np: np.ndarray) -> SpeechLines:
        found = [(line, self._rows[row]) for line, row in enumerate(rows_np.tolist()) if row in self._rows]
        times_np = np.full((len(rows_np), 4), NO_TIMES, dtype=np.int64)
        for line, rules in found:
            if rules.timestamps:
                times_np[line] = rules.first_timestamp, rules.no_timestamps, rules.end_of_text, _last_initial(rules)

        def pairs(values: list[tuple[int, int]]) -> torch.Tensor:
            return self._device.upload(np.array(values, dtype=np.int64).reshape(-1, 2))

        return SpeechLines(
            pairs=pairs([(line, token) for line, rules in found for token in rules.suppressed]),
            first_pairs=pairs([(line, token) for line, rules in found for token in rules.suppressed_first]),
            times=self._device.upload(times_np),
            longest=int(self._max_len_np[rows_np].max()),
        )


def _last_initial(rules: SpeechRules) -> int:
    return rules.first_timestamp + rules.max_initial if rules.max_initial >= 0 else _ANY_TIME

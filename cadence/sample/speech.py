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
from cadence.sample.host_rows import HostRows

_ANY_TIME = 2**31  # more steps than there are tokens


Asked = tuple[SpeechRules, int]  # and the most tokens that the row can ever hold


class SpeechTokens(HostRows[Asked, SpeechLines]):
    """All is read off the token table, so it holds for tokens that no host has seen yet."""

    def __init__(self, device: Device, ops: Ops, num_rows: int) -> None:
        super().__init__(device, num_rows)
        self._ops = ops

    def wanted(self, request: NewRow) -> Asked | None:
        rules = request.sampling.speech_rules
        return None if rules is None else (rules, request.max_len)

    def apply(self, logits: torch.Tensor, ctx: SampleContext) -> torch.Tensor:
        written = WrittenTokens(ctx.tokens, ctx.rows, ctx.lengths, ctx.prompt_lens)
        self._ops.apply_speech_rules(logits, self.gather(ctx.rows_np), written)
        return logits

    def upload(self, found: list[tuple[int, Asked]], num_lines: int) -> SpeechLines:
        of_lines = [(line, rules) for line, (rules, _) in found]
        times_np = np.full((num_lines, 4), NO_TIMES, dtype=np.int64)
        for line, rules in of_lines:
            if rules.timestamps:
                times_np[line] = rules.first_timestamp, rules.no_timestamps, rules.end_of_text, _last_initial(rules)

        def pairs(values: list[tuple[int, int]]) -> torch.Tensor:
            return self.device.upload(np.array(values, dtype=np.int64).reshape(-1, 2))

        return SpeechLines(
            pairs=pairs([(line, token) for line, rules in of_lines for token in rules.suppressed]),
            first_pairs=pairs([(line, token) for line, rules in of_lines for token in rules.suppressed_first]),
            times=self.device.upload(times_np),
            longest=max(max_len for _, (_, max_len) in found),
        )


def _last_initial(rules: SpeechRules) -> int:
    return rules.first_timestamp + rules.max_initial if rules.max_initial >= 0 else _ANY_TIME

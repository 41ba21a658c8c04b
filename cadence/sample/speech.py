"""`speech_rules`: the tokens that a transcript may go on with."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from cadence.core.contract.step import NewRow
from cadence.core.speech_rules import SpeechRules
from cadence.device.base import Device
from cadence.sample.context import SampleContext
from cadence.sample.lines import NOTHING

_ANY_TIME = 2**31  # more steps than there are tokens


@dataclass(frozen=True, slots=True)
class SpeechLines:
    """The lines of a step that have rules, and those among them with rules of times."""

    pairs: torch.Tensor  # [m, 2] int64: a line and a token that it never gets
    first_pairs: torch.Tensor  # [f, 2] int64: a line and a token that it does not begin with
    lines: torch.Tensor  # [n] int64: with rules of times
    first_timestamp: torch.Tensor  # [n, 1] int64
    no_timestamps: torch.Tensor  # [n, 1] int64
    end_of_text: torch.Tensor  # [n, 1] int64
    last_initial: torch.Tensor  # [n, 1] int64: the last time that a transcript may begin with


class SpeechTokens:
    """A `RequestTable` and a `LogitsStep`. All is read off the token table, so it holds for tokens that no host has
    seen yet."""

    def __init__(self, device: Device, num_rows: int) -> None:
        self._device = device
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
        own = self._gather(ctx.rows_np)
        logits.index_put_(own.pairs.unbind(1), logits.new_tensor(NOTHING))
        lines, tokens = own.first_pairs.unbind(1)
        begins = ctx.lengths[lines] == ctx.prompt_lens[lines]
        logits.index_put_((lines, tokens), logits[lines, tokens].masked_fill(begins, NOTHING))
        if not len(own.lines):
            return logits
        barred = _barred(own, ctx, logits.shape[1], int(self._max_len_np[ctx.rows_np].max()))
        kept = logits[own.lines].masked_fill(barred, NOTHING)
        return logits.index_put_((own.lines,), _likelier_times(kept, own.first_timestamp))

    def _gather(self, rows_np: np.ndarray) -> SpeechLines:
        if self._rows_np is None or not np.array_equal(rows_np, self._rows_np):
            found = [(line, self._rows[row]) for line, row in enumerate(rows_np.tolist()) if row in self._rows]
            self._uploaded = self._upload(found)
            self._rows_np = rows_np.copy()
        return self._uploaded

    def _upload(self, found: list[tuple[int, SpeechRules]]) -> SpeechLines:
        timed = [(line, rules) for line, rules in found if rules.timestamps]

        def column(values: list[int]) -> torch.Tensor:
            return self._device.upload(np.array(values, dtype=np.int64).reshape(-1, 1))

        def pairs(values: list[tuple[int, int]]) -> torch.Tensor:
            return self._device.upload(np.array(values, dtype=np.int64).reshape(-1, 2))

        return SpeechLines(
            pairs=pairs([(line, token) for line, rules in found for token in rules.suppressed]),
            first_pairs=pairs([(line, token) for line, rules in found for token in rules.suppressed_first]),
            lines=column([line for line, _ in timed])[:, 0],
            first_timestamp=column([rules.first_timestamp for _, rules in timed]),
            no_timestamps=column([rules.no_timestamps for _, rules in timed]),
            end_of_text=column([rules.end_of_text for _, rules in timed]),
            last_initial=column([_last_initial(rules) for _, rules in timed]),
        )


def _last_initial(rules: SpeechRules) -> int:
    return rules.first_timestamp + rules.max_initial if rules.max_initial >= 0 else _ANY_TIME


def _barred(own: SpeechLines, ctx: SampleContext, vocab_size: int, longest: int) -> torch.Tensor:
    """[n, V]: tokens that would break a pair of times, go back in time, or begin without one."""
    rows, lengths, prompt_lens = ctx.rows[own.lines], ctx.lengths[own.lines, None], ctx.prompt_lens[own.lines, None]
    tokens = ctx.tokens[rows, :longest].long()  # [n, longest]
    places = torch.arange(tokens.shape[1], device=tokens.device)
    is_time = (tokens >= own.first_timestamp) & (places >= prompt_lens) & (places < lengths)
    written = lengths - prompt_lens  # [n, 1]
    after_time = is_time.gather(1, (lengths - 1).clamp(min=0)) & (written > 0)
    # The first time has no partner: after it comes text, as after a pair.
    after_pair = after_time & ((written < 2) | is_time.gather(1, (lengths - 2).clamp(min=0)))
    last_place = torch.where(is_time, places, -1).amax(dim=1, keepdim=True)
    last_time = tokens.gather(1, last_place.clamp(min=0)) + torch.where(after_time & ~after_pair, 0, 1)
    earliest = torch.where(last_place >= 0, last_time, own.first_timestamp)
    ids = torch.arange(vocab_size, device=tokens.device)
    times = ids >= own.first_timestamp
    barred = (ids == own.no_timestamps) | (times & (ids < earliest)) | (times & after_pair)
    barred |= (ids < own.end_of_text) & after_time & ~after_pair
    return barred | ((written == 0) & (~times | (ids > own.last_initial)))


def _likelier_times(logits: torch.Tensor, first_timestamp: torch.Tensor) -> torch.Tensor:
    """logits [n, V]: where all times together are likelier than any other token, the others are barred."""
    times = torch.arange(logits.shape[1], device=logits.device) >= first_timestamp
    of_times = logits.masked_fill(~times, NOTHING).logsumexp(dim=-1, keepdim=True)
    of_text = logits.masked_fill(times, NOTHING).amax(dim=-1, keepdim=True)
    return logits.masked_fill(~times & (of_times > of_text), NOTHING)

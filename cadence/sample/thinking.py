"""`thinking_token_budget`: reasoning that has had its number of tokens is ended."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from cadence.core.contract.step import NewRow
from cadence.sample.context import SampleContext
from cadence.sample.host_rows import HostRows
from cadence.sample.lines import NOTHING
from cadence.sample.token_lists import PAD

NO_BUDGET = 2**62
Asked = tuple[int, list[int], list[int], int]  # budget, what begins reasoning, what ends it, most tokens of the row


@dataclass(frozen=True, slots=True)
class Budgets:
    """Of the n lines of a step that have one."""

    lines: torch.Tensor  # [n] int64
    budgets: torch.Tensor  # [n] int64
    begins: torch.Tensor  # [n, b] int64: the tokens that begin reasoning, padded at the end; all PAD = the output does
    ends: torch.Tensor  # [n, e] int64: the tokens that end it, padded at the end
    longest: int  # most tokens that any of their rows can ever hold


class ThinkingBudget(HostRows[Asked, Budgets]):
    """Where reasoning is over its budget, only the next token of what ends it is left. All is read off the token table,
    so it holds for tokens that no host has seen yet."""

    def wanted(self, request: NewRow) -> Asked | None:
        sampling = request.sampling
        if sampling.thinking_token_budget is None or sampling.thinking_token_ids is None:
            return None
        begin, end = sampling.thinking_token_ids
        return min(sampling.thinking_token_budget, NO_BUDGET), begin, end, request.max_len

    def upload(self, found: list[tuple[int, Asked]], num_lines: int) -> Budgets:
        lines, asked = zip(*found, strict=True)
        budgets, begins, ends, max_lens = zip(*asked, strict=True)
        return Budgets(
            lines=self.device.upload(np.array(lines, dtype=np.int64)),
            budgets=self.device.upload(np.array(budgets, dtype=np.int64)),
            begins=self.device.upload(_padded(begins)),
            ends=self.device.upload(_padded(ends)),
            longest=max(max_lens),
        )

    def apply(self, logits: torch.Tensor, ctx: SampleContext) -> torch.Tensor:
        own = self.gather(ctx.rows_np)
        rows, lengths = ctx.rows[own.lines], ctx.lengths[own.lines]
        tokens = ctx.tokens[rows, : own.longest]  # [n, longest]
        prompt_lens = ctx.prompt_lens[own.lines]
        begun = _last_end_of(own.begins, tokens, lengths)
        begun = torch.where((own.begins == PAD).all(dim=1), prompt_lens, begun)  # [n], -1 where it has not
        ended = _last_end_of(own.ends, tokens, lengths)
        over = (begun >= 0) & (ended <= begun) & (lengths - begun >= own.budgets)
        forced = own.ends.gather(1, _num_said(own.ends, tokens, lengths)[:, None])  # [n, 1]
        only = torch.full_like(logits[own.lines], NOTHING).scatter_(1, forced, 0.0)
        return logits.index_put_((own.lines,), torch.where(over[:, None], only, logits[own.lines]))


def _padded(marks: tuple[list[int], ...]) -> np.ndarray:
    """[n, longest], at least one column."""
    padded_np = np.full((len(marks), max(1, *map(len, marks))), PAD, dtype=np.int64)
    for line_np, mark in zip(padded_np, marks, strict=True):
        line_np[: len(mark)] = mark
    return padded_np


def _last_end_of(marks: torch.Tensor, tokens: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """marks [n, m], tokens [n, max_len] -> [n]: where the last occurrence of each line's mark ends, -1 if nowhere."""
    width = tokens.shape[1]
    tokens = torch.nn.functional.pad(tokens, (0, marks.shape[1]))
    found = torch.ones((len(marks), width), dtype=torch.bool, device=tokens.device)
    for place in range(marks.shape[1]):
        mark = marks[:, place, None]
        found &= (tokens[:, place : place + width] == mark) | (mark == PAD)
    ends = torch.arange(width, device=tokens.device) + (marks != PAD).sum(dim=1)[:, None]
    return torch.where(found & (ends <= lengths[:, None]), ends, -1).amax(dim=1)


def _num_said(marks: torch.Tensor, tokens: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """marks [n, m], tokens [n, max_len] -> [n]: how much of its mark each line ends in, less than the whole."""
    said = torch.zeros_like(lengths)
    sizes = (marks != PAD).sum(dim=1)
    for count in range(1, marks.shape[1]):
        places = lengths[:, None] - count + torch.arange(count, device=tokens.device)
        tail = tokens.gather(1, places.clamp(min=0))
        fits = (tail == marks[:, :count]).all(dim=1) & (count < sizes) & (lengths >= count)
        said = torch.where(fits, count, said)
    return said

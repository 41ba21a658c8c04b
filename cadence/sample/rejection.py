"""Rejection sampling: a draft is chosen as often as its probability allows, so that more drafts are kept.

At a line of a random row where a draft d stands that was drawn from q, and where the target's distribution is p (after
temperature, penalties, filters and all), d is chosen with probability min(1, p(d) / q(d)), else a token from
max(p - q, 0), scaled to 1: never d. Whatever q is, the choice is distributed as p. A draft is kept while it is what was
chosen in its place, as always. Lines without a draft, and greedy rows, choose as always.

Randomness is a function of (seed, position) here, too, and three kinds of it know nothing of each other:

| noise | decides |
|---|---|
| the row's own | lines without a draft, and what is chosen instead of a draft |
| of drafts | what a model drafts |
| of acceptance | whether a draft is chosen |

What is chosen at a position depends on the noise of this position and on the tokens before it: where drafts were
rejected before they came to be chosen or not, nothing is used up.
"""

from __future__ import annotations

import numpy as np
import torch

from cadence.core.contract.step import NewRow
from cadence.core.contract.table import RequestTable
from cadence.device.base import Device
from cadence.device.staged import RowScalars
from cadence.kernels.interface.ops import NO_IDS, DrawParams, Ops
from cadence.kernels.interface.row_ops import RowState
from cadence.sample.context import SampleContext
from cadence.sample.draft_distributions import DraftDistributions, DraftedLines
from cadence.sample.lines import line_pieces
from cadence.sample.params import SamplingTable, signed64
from cadence.sample.sampler import Choice, Sampler

_DRAFTS, _ACCEPTANCE = 1, 2  # salts


class RejectionSampler:
    """Implements `TokenSampler`. Where steps are captured, lines that only draw are verified inside; a CPU records C
    alone: there random rows go by `choose`."""

    def __init__(
        self, device: Device, ops: Ops, table: SamplingTable, state: RowState, drafts: DraftDistributions
    ) -> None:
        self._ops, self._state, self._drafts = ops, state, drafts
        self._plain = Sampler(device, ops, table)
        self._captured = device.queues_work
        self._random_np = table.random_np
        self._params = self._plain.params
        self._seeds = SaltedSeeds(device, len(table.random_np))
        self._draft_params = DrawParams(self._params.temperatures, self._seeds.drafts, self._params.random)
        self.tables: list[RequestTable] = [self._seeds]

    def beyond_draw(self, rows_np: np.ndarray) -> bool:
        return not self._captured and bool(self._random_np[rows_np].any())

    def draw(self, logits: torch.Tensor, rows: torch.Tensor, lengths: torch.Tensor) -> Choice:
        if not self._captured:
            return self._plain.draw(logits, rows, lengths)
        rows = rows.long()
        return self._choose(logits.float() / self._params.temperatures[rows, None], rows, lengths.long())

    def draw_draft(
        self, logits: torch.Tensor, rows: torch.Tensor, lengths: torch.Tensor, draft: int, ids: torch.Tensor = NO_IDS
    ) -> Choice:
        kept = self._drafts.put(draft, rows, logits)
        return self._ops.draw(kept, rows, lengths, self._draft_params, ids)

    def choose(self, logits: torch.Tensor, ctx: SampleContext) -> Choice:
        if not self._random_np[ctx.rows_np].any():
            return self._plain.choose(logits, ctx)
        return self._choose(logits, ctx.rows, ctx.lengths)

    def _choose(self, logits: torch.Tensor, rows: torch.Tensor, lengths: torch.Tensor) -> Choice:
        """logits [S, V] float32, divided by the temperature; rows, lengths [S] int64. Waits for nothing."""
        tokens = torch.empty(len(rows), dtype=torch.int32, device=logits.device)
        peaks = torch.empty(len(rows), dtype=torch.float32, device=logits.device)
        for piece in line_pieces(logits):
            tokens[piece], peaks[piece] = self._choose_piece(logits[piece], rows[piece], lengths[piece])
        return tokens, peaks

    def _choose_piece(self, logits: torch.Tensor, rows: torch.Tensor, lengths: torch.Tensor) -> Choice:
        random = self._params.random[rows] != 0
        drafted, lines = self._find_drafts(rows, lengths, random)
        target = logits.softmax(dim=-1)
        source = self._drafts.probabilities(lines, logits.shape[1])
        p, q = (each.gather(1, lines.tokens[:, None])[:, 0] for each in (target, source))
        accepted = drafted & accepts(self._uniform(rows, lengths), p, q)

        noise = self._ops.gumbel_noise(self._params.seeds[rows], lengths, logits.shape[1])
        others = torch.where(drafted[:, None], residual(target, source).log(), logits)
        best = torch.where(random[:, None], others + noise, others).max(dim=-1)
        accepted |= drafted & (best.values == -torch.inf)  # p is q but for rounding
        tokens = torch.where(accepted, lines.tokens, best.indices)
        return tokens.to(torch.int32), torch.where(drafted, logits.amax(dim=-1), best.values)

    def _find_drafts(
        self, rows: torch.Tensor, lengths: torch.Tensor, random: torch.Tensor
    ) -> tuple[torch.Tensor, DraftedLines]:
        """[S] bool: at which lines of random rows a draft stands. Drafts begin after the newest token, and the last
        one may stand after the last line: it then counts for what is chosen there, and is not kept."""
        number = lengths - self._state.num_computed[rows] - 1
        drafted = random & (number >= 0) & (number < self._state.num_drafts[rows])
        at = lengths.clamp(max=self._state.tokens.shape[1] - 1)
        tokens = torch.where(drafted, self._state.tokens[rows, at], 0).long()
        number = torch.where(drafted, number, 0)
        return drafted, DraftedLines(rows, number, tokens, self._params.temperatures[rows])

    def _uniform(self, rows: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        """[S] float64, above 0 and below 1: what noise is made of."""
        noise = self._ops.gumbel_noise(self._seeds.acceptance[rows], lengths, 1)[:, 0]
        return (-(-noise.double()).exp()).exp()


def accepts(uniform: torch.Tensor, p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """uniform [S] float64; p, q [S]: probabilities of the draft, the target's and that with which it was drawn."""
    return uniform * q < p


def residual(target: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    """[S, V]: what the target has more of. Where the draft was not accepted it has none of that."""
    return (target - source).clamp_(min=0.0)


class SaltedSeeds:
    """A `RequestTable`: of each row's seed, two that have nothing to do with it."""

    def __init__(self, device: Device, num_rows: int) -> None:
        self._scalars = RowScalars(device, num_rows, {"drafts": "i64", "acceptance": "i64"})
        self.drafts = self._scalars.get("drafts")  # [num_rows] int64, strided
        self.acceptance = self._scalars.get("acceptance")

    def add(self, row: int, request: NewRow) -> None:
        self._scalars.set(row, drafts=salted(request.seed, _DRAFTS), acceptance=salted(request.seed, _ACCEPTANCE))

    def remove(self, row: int) -> None:
        """What a row without a request holds is never read."""

    def flush(self) -> None:
        self._scalars.flush()


def salted(seed: int, salt: int) -> int:
    """A signed number of 64 bits that differs in about half of them for another seed or salt: SplitMix64."""
    mixed = (seed + salt * 0x9E3779B97F4A7C15) % (1 << 64)
    mixed = (mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9 % (1 << 64)
    mixed = (mixed ^ (mixed >> 27)) * 0x94D049BB133111EB % (1 << 64)
    return signed64(mixed ^ (mixed >> 31))

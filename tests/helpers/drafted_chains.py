"""Many rows at once through the loop of speculation, without an engine: the target and its proposer are Markov chains,
whose logits are looked up by the last token, so that the distribution of what comes out is known exactly."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from cadence.config.speculative import SpeculativeConfig
from cadence.config.speculative_options import PROBABILISTIC
from cadence.core.contract.step import NewRow
from cadence.core.sampling_params import SamplingParams
from cadence.device.base import Device
from cadence.device.cpu import CpuDevice
from cadence.kernels.interface.ops import NO_IDS, Ops
from cadence.kernels.interface.row_ops import RowState, StepBatch
from cadence.kernels.reference.ops import ReferenceOps
from cadence.runner.state.requests import RequestRows
from cadence.sample.context import SampleContext
from cadence.sample.draft_distributions import DraftLogits, SureDrafts
from cadence.sample.pipeline import SamplePipeline
from cadence.speculate.choose import sampler_of
from tests.helpers.sample_bench import oracle

FIRST = 0  # the token that every prompt is
ASKED = SpeculativeConfig("ngram", num_tokens=1, rejection_sample_method=PROBABILISTIC)


class QueueingCpu(CpuDevice):
    """Chooses as a GPU does inside its graphs."""

    queues_work = True


@dataclass
class Chains:
    """`num_rows` texts, each of its own seed."""

    target: torch.Tensor  # [V, V] float32: logits after each token
    draft: torch.Tensor  # [V, columns] float32; -inf but for one token: a draft that is looked up
    target_ids: torch.Tensor | None = None  # [columns] int64, where the proposer knows some tokens only
    num_drafts: int = 2
    num_tokens: int = 3  # of each text, after its prompt
    num_rows: int = 20_000
    sure: bool = False  # drafts are verified as if they were looked up
    sampling: dict[str, Any] = field(default_factory=dict)
    device: Device = field(default_factory=CpuDevice)
    ops: Ops = field(default_factory=ReferenceOps)
    num_kept: int = 0  # drafts
    num_verified: int = 0

    def __post_init__(self) -> None:
        vocab, there = self.target.shape[0], self.device.torch_device
        self.target, self.draft = self.target.to(there), self.draft.to(there)
        self.requests = RequestRows(self.device, self.num_rows, 1 + self.num_tokens)
        ids = torch.arange(vocab) if self.target_ids is None else self.target_ids
        drafts = SureDrafts() if self.sure else self._draft_logits(ids.to(there))
        self.ids = NO_IDS if self.target_ids is None else ids.int().to(there)
        new_sampler = sampler_of(ASKED, self.requests.state, drafts)
        self.pipeline = SamplePipeline(self.device, self.ops, self.num_rows, vocab, new_sampler=new_sampler)
        sampling = SamplingParams(max_tokens=self.num_tokens, **self.sampling)
        for row in range(self.num_rows):
            self._begin(row, sampling)
        for table in (self.requests, *self.pipeline.tables):
            table.flush()
        self._at_first = [column.clone() for column in self._moving()]

    def _moving(self) -> list[torch.Tensor]:
        return [self.state.tokens, self.state.num_computed, self.state.quiet, self.state.num_drafts]

    def _draft_logits(self, ids: torch.Tensor) -> DraftLogits:
        return DraftLogits(self.num_rows, self.num_drafts, ids, torch.float32)

    def _begin(self, row: int, sampling: SamplingParams) -> None:
        request = NewRow(
            row=row,
            request_id=str(row),
            token_ids_np=np.array([FIRST], np.int32),
            prompt_len=1,
            num_computed=0,
            block_ids=(),
            sampling=sampling,
            seed=row,
            stop_token_ids=frozenset(),
            max_len=1 + self.num_tokens,
        )
        for table in (self.requests, *self.pipeline.tables):
            table.add(row, request)

    @property
    def state(self) -> RowState:
        return self.requests.state

    def run(self) -> torch.Tensor:
        """-> texts [num_rows, num_tokens], from their prompts on"""
        self.num_kept = self.num_verified = 0
        for column, before in zip(self._moving(), self._at_first, strict=True):
            column.copy_(before)
        rows_np = np.arange(self.num_rows, dtype=np.int32)
        while len(rows_np):
            self._propose(rows_np)
            self._forward(rows_np)
            quiet = self.state.quiet.cpu().numpy()
            rows_np = rows_np[quiet[rows_np] == 0]
        return self.state.tokens[:, 1 : 1 + self.num_tokens].cpu()

    def _propose(self, rows_np: np.ndarray) -> None:
        state, rows = self.state, self.device.upload(rows_np).long()
        for number in range(self.num_drafts):
            at = state.num_computed[rows].long() + 1 + number
            there = state.tokens.shape[1] - 1
            logits = self.draft[state.tokens[rows, (at - 1).clamp(max=there)].long()]
            tokens, _ = self.pipeline.draw_draft(logits, rows.int(), at.int(), number, self.ids)
            fits = at < state.max_len[rows] - 1
            state.tokens[rows[fits], at[fits]] = tokens[fits]
            state.num_drafts[rows[fits]] = number + 1

    def _forward(self, rows_np: np.ndarray) -> None:
        state, ops = self.state, self.ops
        batch = self._batch(rows_np)
        ops.rows.gather(state, (torch.zeros_like(state.tokens),), 16, batch)
        logits = self.target[batch.ids.long()]
        before, drafts = state.num_computed[batch.rows.long()].clone(), state.num_drafts[batch.rows.long()].clone()
        lines_np = np.repeat(rows_np, 1 + self.num_drafts)
        if self.pipeline.only_draws(lines_np):
            tokens, peaks = self.pipeline.draw(logits, batch.line_rows, batch.line_lengths)
        else:
            ctx = SampleContext.of(
                lines_np, batch.line_rows, batch.line_lengths, state.tokens, self.requests.prompt_len
            )
            sampled = self.pipeline.sample(logits.clone(), ctx)
            tokens, peaks = sampled.tokens, sampled.peaks[-1]
        ops.rows.commit(state, batch, tokens, peaks, torch.zeros_like(tokens))
        self.num_verified += int(drafts.sum())
        self.num_kept += int((state.num_computed[batch.rows.long()] - before - 1).sum())

    def _batch(self, rows_np: np.ndarray) -> StepBatch:
        count, width = len(rows_np), 1 + self.num_drafts

        def zeros(size: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
            return torch.zeros(size, dtype=dtype, device=self.device.torch_device)

        start = self.device.upload(np.arange(count + 1, dtype=np.int32) * width)
        lines = count * width
        return StepBatch(
            rows=self.device.upload(rows_np),
            query_start=start,
            line_start=start,
            ids=zeros(lines),
            positions=zeros(lines, torch.int64),
            slots=(zeros(lines, torch.int64),),
            seq_lens=zeros(count),
            line_at=zeros(lines, torch.int64),
            line_rows=zeros(lines),
            line_lengths=zeros(lines),
            num_single=0,
            max_query_len=width,
        )

    def probabilities(self) -> np.ndarray:
        """Of every text, [V] * num_tokens: what the target alone would write."""
        params, logits = SamplingParams(**self.sampling), self.target.cpu().numpy()
        steps = np.stack([oracle(line, [], [], params) for line in logits])  # [V, V]
        all_texts = np.indices((len(steps),) * self.num_tokens)
        return np.prod(
            [steps[before, now] for before, now in pairwise([np.full_like(all_texts[0], FIRST), *all_texts])], 0
        )

    def deviation(self, texts: torch.Tensor) -> float:
        """How far counts of texts are from what is expected: their chi-square, in standard deviations."""
        expected = self.probabilities() * len(texts)
        counts = np.zeros_like(expected)
        np.add.at(counts, tuple(texts.numpy().T), 1)
        assert not counts[expected == 0].any(), "a text that cannot be"
        return deviation(counts, expected)


def deviation(counts: np.ndarray, expected: np.ndarray) -> float:
    """Of cells that expect less than five, one is made. As Wilson and Hilferty have it: (chi-square / n) ** (1 / 3) is
    nearly normal."""
    seldom = expected < 5
    if seldom.any():
        counts = np.append(counts[~seldom], counts[seldom].sum())
        expected = np.append(expected[~seldom], expected[seldom].sum())
    used = expected > 0
    square, free = ((counts - expected)[used] ** 2 / expected[used]).sum(), used.sum() - 1
    spread = 2 / (9 * free)
    return float(((square / free) ** (1 / 3) - (1 - spread)) / spread**0.5)

"""The straight line of one step: apply the plan, gather, forward, sample, commit. No feature is named here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

from cadence.core.step import StepPlan
from cadence.core.table import RequestTable
from cadence.device.base import Device
from cadence.kernels.ops import Ops
from cadence.models.interfaces import CausalLM, ForwardContext, LayerCache
from cadence.runner.handle import NoSample, Observation, StepHandle
from cadence.runner.prepare import BatchBuilder
from cadence.runner.state.batch import StepBatch
from cadence.runner.state.blocks import BlockTables
from cadence.runner.state.requests import RequestRows
from cadence.sample.context import SampleContext
from cadence.sample.output import SampleOutput
from cadence.sample.prompt_slice import PromptSlice


class Sampler(Protocol):
    def sample(self, logits: torch.Tensor, ctx: SampleContext) -> SampleOutput: ...


class HiddenHook(Protocol):
    """Looks at the hidden states of a step for the rows that asked for it."""

    def active(self, rows_np: np.ndarray) -> bool: ...

    def collect(
        self, hidden: torch.Tensor, step: PromptSlice, logits_fn: Callable[[torch.Tensor], torch.Tensor]
    ) -> Observation: ...


@dataclass(frozen=True, slots=True)
class RunnerParts:
    """Everything the runner works with, made by `setup`."""

    device: Device
    ops: Ops
    model: CausalLM
    requests: RequestRows
    blocks: BlockTables
    batches: BatchBuilder
    tables: Sequence[RequestTable]  # all per-request state, `requests` and `blocks` included
    hooks: Sequence[HiddenHook]
    sampler: Sampler


class Runner:
    def __init__(self, parts: RunnerParts, caches: Sequence[LayerCache]) -> None:
        self._parts = parts
        self._caches = caches

    @torch.inference_mode()
    def step(self, plan: StepPlan) -> StepHandle:
        """Queues the whole step on the device and returns at once."""
        self._apply(plan)
        batch = self._parts.batches.build(plan)
        hidden = self._forward(batch)
        observations = self._observe(batch, hidden)
        sampled = self._sample(batch, hidden)
        self._commit(batch, sampled)
        return StepHandle(plan.step_id, self._parts.device, sampled, observations)

    def use_caches(self, caches: Sequence[LayerCache]) -> None:
        self._caches = caches

    def _apply(self, plan: StepPlan) -> None:
        for row in plan.ended:
            for table in self._parts.tables:
                table.remove(row)
        for request in plan.begun:
            for table in self._parts.tables:
                table.add(request.row, request)
        for blocks in plan.blocks:
            self._parts.blocks.append(blocks)
        for table in self._parts.tables:
            table.flush()

    def _forward(self, batch: StepBatch) -> torch.Tensor:
        """[T, H]"""
        ctx = ForwardContext(self._parts.ops, batch.attention, self._caches)
        return self._parts.model.forward(batch.ids, batch.positions, ctx)

    def _observe(self, batch: StepBatch, hidden: torch.Tensor) -> list[Observation]:
        view = PromptSlice(batch.rows_np, batch.query_start_np, batch.num_computed_np, self._parts.requests.tokens)
        return [
            hook.collect(hidden, view, self._parts.model.logits)
            for hook in self._parts.hooks
            if hook.active(batch.rows_np)
        ]

    def _sample(self, batch: StepBatch, hidden: torch.Tensor) -> SampleOutput | NoSample:
        if not len(batch.sample_rows_np):
            return NoSample(batch.sample_rows)
        ctx = SampleContext(
            rows=batch.sample_rows,
            rows_np=batch.sample_rows_np,
            lengths=batch.sample_lengths,
            tokens=self._parts.requests.tokens,
            prompt_lens=self._parts.requests.prompt_len[batch.sample_rows].long(),
            errors={},
        )
        return self._parts.sampler.sample(self._parts.model.logits(hidden[batch.sample_at]), ctx)

    def _commit(self, batch: StepBatch, sampled: SampleOutput | NoSample) -> None:
        """The device advances its own rows: the next step may be queued before anyone saw these tokens."""
        requests = self._parts.requests
        requests.tokens[batch.sample_rows, batch.sample_lengths] = sampled.tokens
        requests.num_computed[batch.rows] = batch.attention.seq_lens

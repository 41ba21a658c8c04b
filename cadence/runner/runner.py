"""The straight line of one step: apply the plan, gather, forward, sample, commit. No feature is named here."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import torch

from cadence.core.step import StepPlan
from cadence.core.table import RequestTable
from cadence.device.base import Device
from cadence.kernels.row_ops import RowOps, Sampled
from cadence.models.interfaces import CausalLM, LayerCache
from cadence.runner.decode import DecodeLoop
from cadence.runner.forward import Forward
from cadence.runner.handle import DrawnPart, NoSample, Observation, Part, SampledPart, StepHandle
from cadence.runner.prepare import BatchBuilder
from cadence.runner.state.batch import StepBatch
from cadence.runner.state.blocks import BlockTables
from cadence.runner.state.requests import RequestRows
from cadence.sample.context import SampleContext
from cadence.sample.output import SampleOutput
from cadence.sample.prompt_slice import PromptSlice


class Sampler(Protocol):
    def only_draws(self, rows_np: np.ndarray) -> bool: ...

    def draw(
        self, logits: torch.Tensor, rows: torch.Tensor, lengths: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]: ...

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
    row_ops: RowOps
    model: CausalLM
    requests: RequestRows
    blocks: BlockTables
    batches: BatchBuilder
    tables: Sequence[RequestTable]  # all per-request state, `requests` and `blocks` included
    hooks: Sequence[HiddenHook]
    sampler: Sampler
    forward: Forward
    decode: DecodeLoop


class Runner:
    def __init__(self, parts: RunnerParts) -> None:
        self._parts = parts
        self._forwards = StepForwards(parts)
        self._newest = StepHandle(0, 0, 0, iter(()))  # its forwards come before those of the next step

    def step(self, plan: StepPlan) -> StepHandle:
        """Begins the step: queues all of it on a device that works by itself, its first part on one that does not."""
        self._newest.launch_all()
        self._apply(plan)
        handle = StepHandle(plan.step_id, plan.num_steps, int(plan.samples_np.sum()), self._forwards.launch(plan))
        handle.launch()
        if self._parts.device.queues_work:
            handle.launch_all()
        self._newest = handle
        return handle

    def use_caches(self, caches: Sequence[LayerCache]) -> None:
        self._parts.forward.use_caches(caches)
        self._parts.decode.use_caches(caches)

    def vacate(self, row: int) -> None:
        """Ends a row outside any plan."""
        for table in self._parts.tables:
            table.remove(row)

    @torch.inference_mode()
    def _apply(self, plan: StepPlan) -> None:
        for row in plan.ended:
            self.vacate(row)
        for request in plan.begun:
            for table in self._parts.tables:
                table.add(request.row, request)
        for blocks in plan.blocks:
            self._parts.blocks.append(blocks)
        for table in self._parts.tables:
            table.flush()


class StepForwards:
    """The forwards of a step, from the rows as the plan has left them. Apart from the runner, which holds the newest
    step: a step that is not over holds these, and must not hold the runner in turn."""

    def __init__(self, parts: RunnerParts) -> None:
        self._parts = parts

    def launch(self, plan: StepPlan) -> Iterator[Part]:
        """Queues them, in parts."""
        rows_np = plan.rows_np[plan.samples_np]
        draws = self._parts.sampler.only_draws(rows_np)
        longest = int((plan.num_computed_np + plan.num_tokens_np).max())
        done = 0
        if not self._only_decodes(plan):
            yield self._first(plan)
            done = 1
        while done < plan.num_steps:
            left = plan.num_steps - done
            part = self._parts.decode.launch(rows_np, draws, left, plan.num_together, longest + done)
            done += part.num_steps
            yield part

    def _only_decodes(self, plan: StepPlan) -> bool:
        watched = any(hook.active(plan.rows_np) for hook in self._parts.hooks)
        return bool((plan.num_tokens_np == 1).all() and plan.samples_np.all()) and not watched

    @torch.inference_mode()
    def _first(self, plan: StepPlan) -> Part:
        """A forward in which rows compute whatever number of tokens."""
        batch = self._parts.batches.build(plan)
        hidden, observations = self._forward(batch)
        self._parts.requests.state.num_computed[batch.rows] = batch.computed
        if not len(batch.sample_rows_np):
            return SampledPart(self._parts.device, NoSample(), observations)
        logits = self._parts.model.logits(hidden)
        if not observations and self._parts.sampler.only_draws(batch.sample_rows_np):
            return self._draw(batch, logits)
        return SampledPart(self._parts.device, self._sample(batch, logits), observations)

    def _forward(self, batch: StepBatch) -> tuple[torch.Tensor, list[Observation]]:
        """-> (hidden states [S, H] to sample from, what hooks saw). Only hooks want to know of other tokens."""
        hooks = [hook for hook in self._parts.hooks if hook.active(batch.rows_np)]
        if not hooks:
            return self._parts.forward.run_for_samples(batch), []
        hidden = self._parts.forward.run(batch)
        view = PromptSlice(batch.rows_np, batch.query_start_np, batch.num_computed_np, self._parts.requests.tokens)
        return hidden[batch.sample_at], [hook.collect(hidden, view, self._parts.model.logits) for hook in hooks]

    def _draw(self, batch: StepBatch, logits: torch.Tensor) -> Part:
        tokens, peaks = self._parts.sampler.draw(logits, batch.sample_rows, batch.sample_lengths)
        return DrawnPart(self._parts.device, batch.sample_rows_np, self._commit(batch, tokens, peaks)[None])

    def _sample(self, batch: StepBatch, logits: torch.Tensor) -> SampleOutput:
        requests = self._parts.requests
        ctx = SampleContext.of(
            batch.sample_rows_np, batch.sample_rows, batch.sample_lengths, requests.tokens, requests.prompt_len
        )
        sampled = self._parts.sampler.sample(logits, ctx)
        return replace(sampled, tokens=self._commit(batch, sampled.tokens, sampled.peaks[-1]))

    def _commit(self, batch: StepBatch, tokens: torch.Tensor, peaks: torch.Tensor) -> torch.Tensor:
        """The device advances its own rows: the next step may be queued before anyone saw these tokens.

        -> [S] int32, what each row got
        """
        committed = torch.empty_like(tokens)
        sampled = Sampled(batch.sample_rows, batch.sample_lengths, tokens, peaks)
        self._parts.row_ops.commit(self._parts.requests.state, sampled, committed[None])
        return committed

"""The straight line of one step: apply the plan, gather, forward, sample, commit. No feature is named here."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

import numpy as np
import torch

from cadence.core.step import NO_PLAN, StepPlan, StepResult
from cadence.core.table import RequestTable
from cadence.device.base import Device
from cadence.kernels.interface.row_ops import RowOps, Sampled
from cadence.models.interface.model import CausalLM, LayerCache
from cadence.runner.decode import DecodeLoop
from cadence.runner.forward import Forward
from cadence.runner.parts import DrawnPart, NoSample, Observation, Part, SampledPart
from cadence.runner.prepare import BatchBuilder
from cadence.runner.state.batch import StepBatch
from cadence.runner.state.blocks import BlockTables
from cadence.runner.state.requests import RequestRows
from cadence.sample.context import SampleContext
from cadence.sample.output import SampleOutput
from cadence.sample.pipeline import SamplePipeline
from cadence.sample.prompt_slice import PromptSlice


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
    sampler: SamplePipeline
    forward: Forward
    decode: DecodeLoop


class Runner:
    def __init__(self, parts: RunnerParts) -> None:
        self._parts = parts
        self._newest = Forwards(parts, NO_PLAN)
        self._queued: deque[tuple[int, Part]] = deque()  # (step id, forwards)

    def step(self, plan: StepPlan) -> None:
        """All rows are as the plan wants them; none of its forwards runs yet."""
        self._apply(plan)
        self._newest = Forwards(self._parts, plan)

    def advance(self, step_id: int, first: int, count: int) -> None:
        """Queues forwards [first, first + count) of the newest step."""
        for part in self._newest.launch(first, count):
            self._queued.append((step_id, part))

    def result(self) -> StepResult:
        """The next part of what was queued; waits for that part only."""
        step_id, part = self._queued.popleft()
        return part.result(step_id)

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


class Forwards:
    """Those of one step, from the rows as its plan has left them."""

    def __init__(self, parts: RunnerParts, plan: StepPlan) -> None:
        self._parts = parts
        self._plan = plan
        self._rows_np = plan.rows_np[plan.samples_np]
        self._draws = parts.sampler.only_draws(self._rows_np)
        self._longest = int((plan.num_computed_np + plan.num_tokens_np).max(initial=0))  # tokens, in the first forward
        watched = any(hook.active(plan.rows_np) for hook in parts.hooks)
        self._only_decodes = bool((plan.num_tokens_np == 1).all() and plan.samples_np.all()) and not watched

    def launch(self, first: int, count: int) -> Iterator[Part]:
        """Queues some of them, in parts."""
        done, end = first, first + count
        if done == 0 and not self._only_decodes:
            yield self._first(self._plan)
            done = 1
        while done < end:
            together, longest = self._plan.num_together, self._longest + done
            part = self._parts.decode.launch(self._rows_np, self._draws, end - done, together, longest)
            done += part.num_forwards
            yield part

    @torch.inference_mode()
    def _first(self, plan: StepPlan) -> Part:
        """A forward in which rows compute whatever number of tokens."""
        batch = self._parts.batches.build(plan)
        hidden, observations = self._forward(batch)
        self._parts.requests.state.num_computed[batch.rows] = batch.computed
        if not len(batch.sample_rows_np):
            return SampledPart(self._parts.device, NoSample(), observations)
        logits = self._parts.model.logits(hidden, self._parts.forward.context(batch))
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
        logits_fn = partial(self._parts.model.logits, ctx=self._parts.forward.context(batch))
        return hidden[batch.sample_at], [hook.collect(hidden, view, logits_fn) for hook in hooks]

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

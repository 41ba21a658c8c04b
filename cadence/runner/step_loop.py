"""Forwards, one after another: gather from the rows, compute, choose, commit. Prompts, decodes, bursts and dummies all
come this way. The device feeds itself: the host names the rows and queues as many forwards as it likes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

import numpy as np
import torch

from cadence.core.contract.step import StepPlan
from cadence.device.base import Device
from cadence.kernels.interface.ops import Ops
from cadence.kernels.interface.row_ops import RowState, StepBatch
from cadence.models.interface.aux_hidden import AuxHiddenStates
from cadence.models.interface.lora_batch import NO_LORA
from cadence.models.interface.model import CausalLM, ForwardContext, LayerCache, ModelInputs
from cadence.models.interface.wanted import EVERY_TOKEN, LastTokens, Wanted
from cadence.runner.after_sample import AfterSample, States
from cadence.runner.buffers import StepBuffers
from cadence.runner.driver import ForwardDriver
from cadence.runner.feature import InputHook, Reporter
from cadence.runner.graphs import StepGraphs, StepOutputs
from cadence.runner.layout import BatchLayout, decode_layout
from cadence.runner.parts import DrawnLines, DrawnPart, NoSample, Observation, Part, SampledPart
from cadence.runner.shapes import Shapes, StepShape, Until, WantedShapes, shape_of
from cadence.runner.state.blocks import BlockTables
from cadence.runner.state.requests import RequestRows
from cadence.sample.context import SampleContext
from cadence.sample.pipeline import SamplePipeline
from cadence.sample.prompt_slice import PromptSlice
from cadence.sample.sampler import Choice


@dataclass(frozen=True, slots=True)
class ForwardCount:
    most: int  # forwards that may be queued
    together: int  # of these, the tokens of so many may come back at once


ONE = ForwardCount(1, 1)


class HiddenHook(Protocol):
    """Looks at the hidden states of a forward for the rows that asked for it."""

    def active(self, rows_np: np.ndarray) -> bool: ...

    def collect(
        self,
        hidden: torch.Tensor,
        step: PromptSlice,
        ctx: ForwardContext,
        logits_fn: Callable[[torch.Tensor], torch.Tensor],
    ) -> Observation:
        """hidden [T, H]; ctx: of heads on some of these; logits_fn: tokens [n] of the T -> logits [n, V]"""
        ...

    def pass_over(self, step: PromptSlice) -> None:
        """Another stage collects from this forward."""
        ...


@dataclass(frozen=True, slots=True)
class LoopParts:
    """What the loop works with, made by `setup`."""

    device: Device
    driver: ForwardDriver  # of the device
    ops: Ops
    model: CausalLM
    requests: RequestRows
    blocks: BlockTables
    sampler: SamplePipeline
    shapes: Shapes
    graphs: StepGraphs
    after: AfterSample
    inputs: Mapping[str, InputHook]  # by feature
    reporters: Sequence[Reporter]
    listeners: Listeners
    block_size: int
    most_drafts: int = 0  # that are proposed for a row and forward


class Listeners(Protocol):
    """Who must know what was chosen, and what is proposed to follow it. Both may be recorded."""

    def tell_chosen(self, chosen: Choice) -> None:
        """Of each line [L]."""
        ...

    def tell_drafts(self, state: RowState, batch: StepBatch) -> None:
        """Of each row of the batch, which has just been committed."""
        ...


class NobodyElse:
    """All that read them are here."""

    def tell_chosen(self, chosen: Choice) -> None: ...

    def tell_drafts(self, state: RowState, batch: StepBatch) -> None: ...


_NO_LOGITS = torch.zeros((0, 0))


@dataclass(frozen=True, slots=True)
class Computed:
    """A forward whose tokens are yet to be chosen."""

    layout: BatchLayout
    width: int = 1  # lines of a row, drafts that did not exist included
    until: Until = Until.LOGITS  # how far it went
    logits: torch.Tensor = _NO_LOGITS  # [L, V]
    states: States = ()  # what drafts begin with
    observations: Sequence[Observation] = ()


class StepLoop:
    def __init__(self, parts: LoopParts) -> None:
        self._parts = parts
        shapes, device = parts.shapes, parts.device
        self._buffers = StepBuffers(device, shapes, len(parts.blocks.tables), parts.requests.quiet_row)
        self._caches: Sequence[LayerCache] = ()
        self._tokens = parts.driver.tokens
        self._counted = torch.arange(shapes.most_lines + 1, dtype=torch.int32, device=device.torch_device)  # a constant
        self._no_logits = torch.zeros((0, 0), device=device.torch_device)

    def use_caches(self, caches: Sequence[LayerCache]) -> None:
        """Of all layers that are here, the model's first."""
        own = self._parts.model.own_layers
        self._caches = [*[caches[0]] * own.start, *caches[: len(own)]]  # by layer; others' are not looked at
        self._parts.after.use_caches(caches)
        self._parts.graphs.forget()

    def await_rows_of(self, plan: StepPlan) -> None:
        """Rows are about to end or to begin by it: what forwards before have brought them is here."""

    def await_rows(self, rows: Sequence[int]) -> None:
        """The same, of rows that end outside any plan, or that a feature writes."""

    def wanted(self) -> WantedShapes:
        """What is worth recording before it is met."""
        return self._parts.shapes.wanted()

    def with_inputs(self, layout: BatchLayout) -> BatchLayout:
        """With what input hooks say of its rows."""
        inputs = tuple(name for name, hook in self._parts.inputs.items() if hook.active(layout.rows_np))
        return layout if inputs == layout.inputs else replace(layout, inputs=inputs)

    @torch.inference_mode()
    def prepare(self, shape: StepShape) -> None:
        """Records it, on the dummy row alone."""
        self._name(decode_layout(np.zeros(0, dtype=np.int32), shape.max_query_len), shape, shape.depth)
        self._run(shape)

    @torch.inference_mode()
    def launch(
        self, layout: BatchLayout, draws: bool, hooks: Sequence[HiddenHook], depth: int, count: ForwardCount = ONE
    ) -> Part:
        """Queues one or more forwards, several only where there is a line after every token. draws: the rows want
        tokens and nothing else. depth: drafts that rows may have after each."""
        until = until_of(layout, draws, hooks)
        if until is Until.TOKENS and layout.is_decode:
            return self._drawn(layout, depth, count)
        computed = self._compute_once(layout, until, hooks, depth)
        return self._draw_computed(computed) if draws and not hooks and layout.num_lines else self.choose(computed)

    @torch.inference_mode()
    def compute(self, layout: BatchLayout, hooks: Sequence[HiddenHook], depth: int) -> Computed:
        """Queues one forward up to its logits. Nothing else may be launched before `choose`."""
        return self._compute_once(layout, until_of(layout, False, hooks), hooks, depth)

    @torch.inference_mode()
    def choose(self, computed: Computed, waiting: Sequence[int] = ()) -> Part:
        """Queues the rest of it, with whatever its rows ask for. waiting: rows for which there was mail."""
        layout, batch = computed.layout, self._buffers.batch(shape_of(computed.layout, computed.until))
        if not layout.num_lines:
            self._commit_without_lines(batch, computed.states)
            return SampledPart(self._parts.device, layout, NoSample(), computed.observations)
        return self._sample(batch, computed, waiting)

    def _compute_once(self, layout: BatchLayout, until: Until, hooks: Sequence[HiddenHook], depth: int) -> Computed:
        layout, width = self._parts.driver.trim_missing_drafts(layout), layout.width
        shape = self._parts.shapes.shape(layout, until, 1, self._depth(depth))
        self._name(layout, shape, depth)
        outputs = self._run(shape)
        if shape.until is Until.TOKENS:
            return Computed(layout, width, shape.until)
        batch = self._buffers.batch(shape_of(layout, shape.until))  # without the padding
        observations = self._observe(hooks, layout, batch, outputs.hidden)
        states = tuple(each[: layout.num_tokens] for each in outputs.states)
        logits = outputs.logits[: layout.num_lines]
        if shape.until is Until.HIDDEN and layout.num_lines:
            ctx = self._with_inputs(self._context(batch, EVERY_TOKEN), batch, layout.inputs)
            logits = self._parts.model.logits(outputs.hidden[batch.line_at], ctx)
        return Computed(layout, width, shape.until, logits, states, observations)

    def _draw_computed(self, computed: Computed) -> Part:
        """Of rows that want tokens and nothing else; drawn already, where the shape goes so far."""
        layout = computed.layout
        if computed.until is not Until.TOKENS:
            batch = self._buffers.batch(shape_of(layout, computed.until))
            self._draw(batch, computed.logits, computed.states, self._tokens[0, : layout.num_lines])
        return DrawnPart([self._drawn_lines(layout, self._tokens, 1)], computed.width)

    def _run(self, shape: StepShape) -> StepOutputs:
        return self._parts.graphs.run(shape, partial(self._compute, shape))

    def _compute(self, shape: StepShape) -> StepOutputs:
        """All of a shape. It may be recorded: no decision depends on what the device holds."""
        parts, batch = self._parts, self._buffers.batch(shape)
        begins_with = parts.after.begins_with
        wanted = EVERY_TOKEN if begins_with.every_token else _wanted(batch, shape, self._counted)
        ctx = self._context(batch, wanted)
        logits = self._no_logits
        for forward in range(shape.num_forwards):
            parts.ops.rows.gather(parts.requests.state, parts.blocks.tables, parts.block_size, batch)
            ctx = self._with_inputs(ctx, batch, shape.inputs)
            hidden = parts.model.forward(ModelInputs(batch.ids, batch.positions), ctx)
            states = begins_with.of(hidden, ctx)
            if shape.until > Until.HIDDEN:
                picks = begins_with.every_token and not batch.all_lines
                of_lines = hidden[batch.line_at] if picks else hidden
                logits = parts.model.logits(of_lines, ctx)
            if shape.until is Until.TOKENS:
                out = self._tokens[forward, : shape.num_lines]
                self._draw(batch, logits, states, out)
                if shape.is_decode:
                    parts.driver.end_forward(batch, out)
        return StepOutputs(hidden, logits, states)

    def _context(self, batch: StepBatch, wanted: Wanted) -> ForwardContext:
        aux = AuxHiddenStates(self._parts.after.begins_with.aux_layers)
        attention = batch.attention(self._parts.blocks.tables, self._parts.model.sees)
        return ForwardContext(self._parts.ops, attention, self._caches, wanted, aux)

    def _with_inputs(self, ctx: ForwardContext, batch: StepBatch, inputs: tuple[str, ...]) -> ForwardContext:
        """The batch was gathered."""
        for feature in inputs:
            ctx = self._parts.inputs[feature].extend(ctx, batch)
        return ctx

    def _draw(self, batch: StepBatch, logits: torch.Tensor, states: States, out: torch.Tensor) -> None:
        """out [L] int32: what each line's row got"""
        tokens, peaks = self._parts.sampler.draw(logits, batch.line_rows, batch.line_lengths)
        self._commit(batch, (tokens, peaks), states, out)

    def _commit(self, batch: StepBatch, chosen: Choice, states: States, out: torch.Tensor) -> None:
        state = self._parts.requests.state
        self._parts.listeners.tell_chosen(chosen)
        self._parts.ops.rows.commit(state, batch, *chosen, out)
        self._parts.after.propose(state, batch, states)
        self._parts.listeners.tell_drafts(state, batch)

    def _drawn(self, whole: BatchLayout, depth: int, count: ForwardCount) -> Part:
        """Forwards of decodes that end with tokens: in as many runs as the driver makes of one launch."""
        driver, rows_np = self._parts.driver, whole.sampling_np
        drawn: list[DrawnLines] = []
        done, num_quiet = 0, driver.num_quiet(rows_np)
        layout = driver.trim_missing_drafts(whole)
        while True:
            shape, room = self._name_drawn(layout, depth, count.most - done)
            most = 1 if layout.width > 1 else min(count.together - done, room)
            ran = driver.run(shape, most, num_quiet, self._run)
            if ran > shape.num_forwards:
                self._parts.after.repeated(layout, depth, ran - shape.num_forwards)
            drawn.append(self._drawn_lines(layout, driver.log, ran))
            done += ran
            if done + shape.num_forwards > count.together or not driver.goes_on(rows_np, num_quiet):
                return DrawnPart(drawn, whole.width)
            layout = replace(driver.trim_missing_drafts(whole), catch_up=())

    def _name_drawn(self, layout: BatchLayout, depth: int, most_forwards: int) -> tuple[StepShape, int]:
        """-> the shape in which it runs, up to its tokens, and how many forwards may follow"""
        shape = self._parts.shapes.shape(layout, Until.TOKENS, most_forwards, self._depth(depth))
        return shape, self._name(layout, shape, depth)

    def _name(self, layout: BatchLayout, shape: StepShape, depth: int) -> int:
        """Drafts after a shape that ends before its tokens are made without a recording -> forwards that may follow
        before it is named again"""
        self._buffers.name(layout, shape, () if shape.recorded else layout.long_runs())
        drafted = shape if shape.until is Until.TOKENS else shape_of(layout, Until.TOKENS, self._depth(depth))
        return self._parts.after.name(layout, drafted)

    def _depth(self, depth: int) -> int:
        return depth if self._parts.after.by_model else 0

    def _drawn_lines(self, layout: BatchLayout, kept: torch.Tensor, num_forwards: int) -> DrawnLines:
        """kept [num_forwards or more, lines or more] int32: what was committed"""
        tokens = kept[:num_forwards, : layout.num_lines]
        return DrawnLines(layout, self._parts.device.download([tokens]), num_forwards)

    def _sample(self, batch: StepBatch, computed: Computed, waiting: Sequence[int]) -> Part:
        """What the rows asked for beyond a draw is done as the host finds it, outside any graph."""
        parts, requests, layout = self._parts, self._parts.requests, computed.layout
        ctx = SampleContext.of(
            layout.line_rows_np, batch.line_rows, batch.line_lengths, requests.tokens, requests.prompt_len
        )
        sampled = parts.sampler.sample(computed.logits, ctx)
        committed = self._tokens[0, : layout.num_lines]
        self._commit(batch, (sampled.tokens, sampled.peaks[-1]), computed.states, committed)
        reports = {each.name: each.report(waiting) for each in parts.reporters} if waiting else {}
        lines = replace(sampled, tokens=committed)
        return SampledPart(parts.device, layout, lines, computed.observations, reports)

    def _commit_without_lines(self, batch: StepBatch, states: States) -> None:
        nothing = self._tokens[0, :0]
        self._commit(batch, (nothing, nothing.float()), states, nothing)

    def _observe(
        self, hooks: Sequence[HiddenHook], layout: BatchLayout, batch: StepBatch, hidden: torch.Tensor
    ) -> list[Observation]:
        """hidden [T, H]"""
        view = self._view(layout)
        ctx = self._with_inputs(self._context(batch, EVERY_TOKEN), batch, layout.inputs)

        def logits_fn(lines: torch.Tensor) -> torch.Tensor:
            return self._parts.model.logits(hidden[lines], ctx.at_lines(lines))

        plain = replace(ctx, lora=NO_LORA)
        return [hook.collect(hidden, view, plain, logits_fn) for hook in hooks]

    def _view(self, layout: BatchLayout) -> PromptSlice:
        return PromptSlice(layout.rows_np, layout.query_start_np, layout.num_computed_np, self._parts.requests.tokens)


def until_of(layout: BatchLayout, draws: bool, hooks: Sequence[HiddenHook]) -> Until:
    """How far a forward goes by itself. draws: its rows want tokens and nothing else"""
    if hooks:
        return Until.HIDDEN
    if not layout.num_lines:
        return Until.KEYS
    return Until.TOKENS if draws else Until.LOGITS


def _wanted(batch: StepBatch, shape: StepShape, counted: torch.Tensor) -> Wanted:
    """Whose hidden states go on after the last keys: those of the lines, unless a shape ends with all.

    counted [lines + 1 or more] int32: 0, 1, 2, …
    """
    if shape.until is Until.HIDDEN or batch.all_lines:
        return EVERY_TOKEN
    if shape.until is Until.KEYS:  # one, since no op is made for none
        last = torch.full_like(batch.positions[:1], shape.num_tokens - 1)
        return LastTokens(last, batch.rows[-1:], batch.seq_lens[-1:], counted[:2])
    return LastTokens(batch.line_at, batch.line_rows, batch.line_lengths, counted[: shape.num_lines + 1])

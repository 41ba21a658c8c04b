"""Forwards, one after another: gather from the rows, compute, choose, commit. Prompts, decodes, bursts and dummies all
come this way. The device feeds itself: the host names the rows and queues as many forwards as it likes.

How far a forward goes by itself (`until_of`), in which shape (`Shapes`), and by which exit its tokens are chosen:

| the forward              | until  | shape that runs                   | tokens                 | exit               |
|--------------------------|--------|-----------------------------------|------------------------|--------------------|
| a hook looks at it       | HIDDEN | HIDDEN; short: recorded           | sampled after it       | `choose`           |
| no row has lines         | KEYS   | KEYS; short: HIDDEN, recorded     | none; rows advance     | `choose`           |
| decodes that want more   | LOGITS | LOGITS, recorded                  | sampled after it       | `choose`           |
| prompts that want more   | LOGITS | LOGITS; short: HIDDEN, recorded   | sampled after it       | `choose`           |
| decodes that only draw   | TOKENS | TOKENS, recorded; or bursts of it | drawn in it            | `_drawn`           |
|   uneven, padded shapes  |        | TOKENS                            | drawn in it            | `_drawn`           |
| prompts that only draw   | TOKENS | TOKENS                            | drawn in it            | `_draw_computed`   |
|   short ones             |        | HIDDEN, recorded                  | logits, drawn after it | `_draw_computed`   |

To want more than a draw is to ask for logprobs, penalties and the like, or to wait for mail. "Short" are small forwards
with prompts where shapes are padded; where they are not, a forward with prompts runs as it is. A decode is recorded
where graphs are on, unless a proposer has to catch up. `choose` brings a `SampledPart`, the others a `DrawnPart`. All
end with `_commit`, in the shape or after it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

import torch

from cadence.core.contract.step import StepPlan
from cadence.kernels.interface.row_ops import RowState, StepBatch
from cadence.models.interface.wanted import EVERY_TOKEN, LastTokens, Wanted
from cadence.runner.after_sample import States
from cadence.runner.driver import ForwardDriver
from cadence.runner.feature import HiddenHook, Observation, Reporter
from cadence.runner.forward_pass import ForwardPass
from cadence.runner.graphs import StepOutputs
from cadence.runner.layout import BatchLayout
from cadence.runner.loop import ONE, Computed, ForwardCount, until_of
from cadence.runner.parts import DrawnLines, DrawnPart, NoSample, Part, SampledPart
from cadence.runner.shapes import StepShape, Until, WantedShapes, shape_of
from cadence.sample.context import SampleContext
from cadence.sample.pipeline import SamplePipeline
from cadence.sample.sampler import Choice


class Listeners(Protocol):
    """Those that must know what was chosen, and what is proposed to follow it. Both calls may be recorded."""

    def broadcast_chosen(self, chosen: Choice) -> None:
        """Of each line [L]."""
        ...

    def broadcast_drafts(self, state: RowState, batch: StepBatch) -> None:
        """Of each row of the batch, which has just been committed."""
        ...


class NullListeners:
    """All that read them are here."""

    def broadcast_chosen(self, chosen: Choice) -> None: ...

    def broadcast_drafts(self, state: RowState, batch: StepBatch) -> None: ...


class StepLoop:
    """The loop of the last stage, which chooses tokens; see `ForwardLoop`."""

    def __init__(
        self,
        forward: ForwardPass,
        driver: ForwardDriver,
        sampler: SamplePipeline,
        reporters: Sequence[Reporter],
        listeners: Listeners,
    ) -> None:
        parts = forward.parts
        self._forward = forward
        self._parts = parts
        self._driver = driver
        self._sampler = sampler
        self._reporters = reporters
        self._listeners = listeners
        self._tokens = driver.tokens
        # [lines + 1] int32: a constant
        self._counted = torch.arange(parts.shapes.most_lines + 1, dtype=torch.int32, device=parts.device.torch_device)

    def await_rows_of(self, plan: StepPlan) -> None:
        """All that was committed is here."""

    def await_rows(self, rows: Sequence[int]) -> None:
        """All that was committed is here."""

    def wanted(self) -> WantedShapes:
        return self._parts.shapes.wanted()

    @torch.inference_mode()
    def prepare(self, shape: StepShape) -> None:
        self._forward.name_padding(shape)
        self._run(shape)

    @torch.inference_mode()
    def launch(
        self, layout: BatchLayout, draws: bool, hooks: Sequence[HiddenHook], depth: int, count: ForwardCount = ONE
    ) -> Part:
        until = until_of(layout, draws, hooks)
        if until is Until.TOKENS and layout.is_decode:
            return self._drawn(layout, depth, count)
        computed = self._compute_once(layout, until, hooks, depth)
        return self._draw_computed(computed) if until is Until.TOKENS else self.choose(computed)

    @torch.inference_mode()
    def compute(self, layout: BatchLayout, hooks: Sequence[HiddenHook], depth: int) -> Computed:
        return self._compute_once(layout, until_of(layout, False, hooks), hooks, depth)

    @torch.inference_mode()
    def choose(self, computed: Computed, waiting: Sequence[int] = ()) -> Part:
        layout, batch = computed.layout, self._forward.batch(shape_of(computed.layout, computed.until))
        if not layout.num_lines:
            self._commit_without_lines(batch, computed.states)
            return SampledPart(self._parts.device, layout, NoSample(), computed.observations)
        return self._sample(batch, computed, waiting)

    def _drawn(self, whole: BatchLayout, depth: int, count: ForwardCount) -> Part:
        """Forwards of decodes that end with tokens, in as many runs as the driver makes of one launch."""
        driver, rows_np = self._driver, whole.sampling_np
        drawn: list[DrawnLines] = []
        done, num_quiet = 0, driver.num_quiet(rows_np)
        layout = driver.trim_missing_drafts(whole)
        while True:
            shape = self._forward.shape(layout, Until.TOKENS, count.most - done, depth)
            room = self._forward.name(layout, shape, depth)
            most = 1 if layout.width > 1 else min(count.together - done, room)
            ran = driver.run(shape, most, num_quiet, self._run)
            if ran > shape.num_forwards:
                self._parts.after.repeated(layout, depth, ran - shape.num_forwards)
            drawn.append(self._drawn_lines(layout, driver.log, ran))
            done += ran
            if done + shape.num_forwards > count.together or not driver.goes_on(rows_np, num_quiet):
                return DrawnPart(drawn, whole.width)
            layout = replace(driver.trim_missing_drafts(whole), catch_up=())

    def _compute_once(self, layout: BatchLayout, until: Until, hooks: Sequence[HiddenHook], depth: int) -> Computed:
        layout, width = self._driver.trim_missing_drafts(layout), layout.width
        shape = self._forward.shape(layout, until, 1, depth)
        self._forward.name(layout, shape, depth)
        outputs = self._run(shape)
        if shape.until is Until.TOKENS:
            return Computed(layout, width, shape.until)
        batch = self._forward.batch(shape_of(layout, shape.until))  # without the padding
        observations = self._observe(hooks, layout, batch, outputs.hidden)
        states = tuple(each[: layout.num_tokens] for each in outputs.states)
        logits = outputs.logits[: layout.num_lines]
        if shape.until is Until.HIDDEN and layout.num_lines:
            ctx = self._forward.extend(self._forward.context(batch, EVERY_TOKEN), batch, layout.inputs)
            logits = self._parts.model.logits(outputs.hidden[batch.line_at], ctx)
        return Computed(layout, width, shape.until, logits, states, observations)

    def _run(self, shape: StepShape) -> StepOutputs:
        return self._forward.run(shape, self._compute)

    def _compute(self, shape: StepShape) -> StepOutputs:
        """All of a shape. It may be recorded: no decision depends on what the device holds."""
        forward, batch = self._forward, self._forward.batch(shape)
        begins_with = self._parts.after.begins_with
        wanted = EVERY_TOKEN if begins_with.every_token else _wanted(batch, shape, self._counted)
        ctx = forward.context(batch, wanted)
        logits = forward.no_logits
        for number in range(shape.num_forwards):
            forward.gather(batch)
            ctx = forward.extend(ctx, batch, shape.inputs)
            hidden = forward.forward(batch, ctx)
            states = begins_with.of(hidden, ctx)
            if shape.until > Until.HIDDEN:
                picks = begins_with.every_token and not batch.all_lines
                of_lines = hidden[batch.line_at] if picks else hidden
                logits = self._parts.model.logits(of_lines, ctx)
            if shape.until is Until.TOKENS:
                out = self._tokens[number, : shape.num_lines]
                self._draw(batch, logits, states, out)
                if shape.is_decode:
                    self._driver.end_forward(batch, out)
        return StepOutputs(hidden, logits, states)

    def _draw_computed(self, computed: Computed) -> Part:
        """Of rows that want tokens and nothing else; drawn already, where the shape goes so far."""
        layout = computed.layout
        if computed.until is not Until.TOKENS:
            batch = self._forward.batch(shape_of(layout, computed.until))
            self._draw(batch, computed.logits, computed.states, self._tokens[0, : layout.num_lines])
        return DrawnPart([self._drawn_lines(layout, self._tokens, 1)], computed.width)

    def _drawn_lines(self, layout: BatchLayout, kept: torch.Tensor, num_forwards: int) -> DrawnLines:
        """kept [num_forwards or more, lines or more] int32: what was committed"""
        tokens = kept[:num_forwards, : layout.num_lines]
        return DrawnLines(layout, self._parts.device.download([tokens]), num_forwards)

    def _sample(self, batch: StepBatch, computed: Computed, waiting: Sequence[int]) -> Part:
        """What the rows asked for beyond a draw is done as the host finds it, outside any graph."""
        requests, layout = self._parts.requests, computed.layout
        ctx = SampleContext.of(
            layout.line_rows_np, batch.line_rows, batch.line_lengths, requests.tokens, requests.prompt_len
        )
        sampled = self._sampler.sample(computed.logits, ctx)
        committed = self._tokens[0, : layout.num_lines]
        self._commit(batch, (sampled.tokens, sampled.peaks[-1]), computed.states, committed)
        reports = {each.name: each.report(waiting) for each in self._reporters} if waiting else {}
        lines = replace(sampled, tokens=committed)
        return SampledPart(self._parts.device, layout, lines, computed.observations, reports)

    def _draw(self, batch: StepBatch, logits: torch.Tensor, states: States, out: torch.Tensor) -> None:
        """out [L] int32: what each line's row got"""
        tokens, peaks = self._sampler.draw(logits, batch.line_rows, batch.line_lengths)
        self._commit(batch, (tokens, peaks), states, out)

    def _commit(self, batch: StepBatch, chosen: Choice, states: States, out: torch.Tensor) -> None:
        state = self._parts.requests.state
        self._listeners.broadcast_chosen(chosen)
        self._parts.ops.rows.commit(state, batch, *chosen, out)
        self._parts.after.propose(state, batch, states)
        self._listeners.broadcast_drafts(state, batch)

    def _commit_without_lines(self, batch: StepBatch, states: States) -> None:
        nothing = self._tokens[0, :0]
        self._commit(batch, (nothing, nothing.float()), states, nothing)

    def _observe(
        self, hooks: Sequence[HiddenHook], layout: BatchLayout, batch: StepBatch, hidden: torch.Tensor
    ) -> list[Observation]:
        """hidden [T, H]"""
        view = self._forward.prompt_slice(layout)
        ctx = self._forward.extend(self._forward.context(batch, EVERY_TOKEN), batch, layout.inputs)

        def logits_fn(lines: torch.Tensor) -> torch.Tensor:
            return self._parts.model.logits(hidden[lines], ctx.at_lines(lines))

        return [hook.collect(hidden, view, ctx.for_heads(), logits_fn) for hook in hooks]


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

"""The straight line of one step: apply the plan, then its forwards, in parts. No feature is named here."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from cadence.core.contract.step import NO_PLAN, Mail, NewRow, StepPayloads, StepPlan, StepResult
from cadence.core.contract.table import RequestTable
from cadence.models.interface.model import LayerCache
from cadence.runner.feature import DeviceFeature, HiddenHook
from cadence.runner.forward_pass import ForwardPass
from cadence.runner.layout import BatchLayout
from cadence.runner.loop import Computed, ForwardCount, ForwardLoop
from cadence.runner.parts import Part
from cadence.runner.state.blocks import BlockTables
from cadence.runner.state.requests import RequestRows
from cadence.sample.pipeline import SamplePipeline


@dataclass(frozen=True, slots=True)
class RunnerParts:
    """Everything the runner works with, made by `setup`."""

    requests: RequestRows
    blocks: BlockTables
    tables: Sequence[RequestTable]  # per-request state of every row, `blocks` included
    choosing: Sequence[RequestTable]  # of rows that sample: what the choice of their tokens needs
    features: Mapping[str, DeviceFeature]  # by name, in the order in which plans are applied
    hooks: Sequence[HiddenHook]
    sampler: SamplePipeline
    forward: ForwardPass  # the loop's
    loop: ForwardLoop


class Runner:
    def __init__(self, parts: RunnerParts) -> None:
        self._parts = parts
        self._all_tables = (*parts.tables, *parts.choosing)
        self._sampling: set[int] = set()  # rows that are in all of them
        self._newest = Forwards(parts, NO_PLAN)
        self._rank = {name: index for index, name in enumerate(parts.features)}
        self._queued: deque[tuple[int, Part]] = deque()  # (step id, forwards)

    def step(self, plan: StepPlan) -> None:
        """All rows are as the plan wants them; none of its forwards runs yet."""
        self._apply(plan)
        self._newest = Forwards(self._parts, plan)

    def advance(self, step_id: int, first: int, count: int) -> None:
        """Queues forwards [first, first + count) of the newest step."""
        if first == 0 and self._newest.waits:
            self._newest.compute(count)
        else:
            self._queue(step_id, self._newest.launch(first, count))

    def post(self, step_id: int, mail: Mail) -> None:
        """What rows of the newest step wait for. All that was asked of it is queued now."""
        for name, payload in mail.items():
            self._parts.features[name].post(payload)
        self._queue(step_id, self._newest.go_on())

    def result(self) -> StepResult:
        """The next part of what was queued; waits for that part only."""
        step_id, part = self._queued.popleft()
        return part.result(step_id)

    def largest_payloads(self) -> StepPayloads:
        """Of all features, to be tried beforehand."""
        found = {name: feature.largest() for name, feature in self._parts.features.items()}
        return StepPayloads({name: payload for name, payload in found.items() if payload is not None})

    @property
    def num_queued(self) -> int:
        """Parts whose results were not taken."""
        return len(self._queued)

    def _queue(self, step_id: int, parts: Iterator[Part]) -> None:
        for part in parts:
            self._queued.append((step_id, part))

    def use_caches(self, caches: Sequence[LayerCache]) -> None:
        self._parts.forward.use_caches(caches)
        for feature in self._parts.features.values():
            feature.use_caches(self._parts.forward.caches)

    def cache_memory(self) -> list[torch.Tensor]:
        """What rows that begin anew do not need: keys and values, states, and what encoders have made. Zeros may take
        its place once no row is in use, and nothing is cached."""
        keys = [tensor for cache in self._parts.forward.caches for tensor in (cache.k, cache.v)]
        return keys + [tensor for feature in self._parts.features.values() for tensor in feature.memory()]

    @property
    def features(self) -> Mapping[str, DeviceFeature]:
        return self._parts.features

    def vacate(self, row: int) -> None:
        """Ends a row outside any plan."""
        self._parts.loop.await_rows([row])
        self._end(row)

    def _end(self, row: int) -> None:
        samples = row in self._sampling
        self._sampling.discard(row)
        for table in self._all_tables if samples else self._parts.tables:
            table.remove(row)

    def _begin(self, request: NewRow) -> None:
        if request.samples:
            self._sampling.add(request.row)
        for table in self._all_tables if request.samples else self._parts.tables:
            table.add(request.row, request)

    @torch.inference_mode()
    def _apply(self, plan: StepPlan) -> None:
        self._parts.loop.await_rows_of(plan)
        for row in plan.ended:
            self._end(row)
        for name in sorted(plan.payloads, key=self._rank.__getitem__):  # some read what those before them leave
            feature, payload = self._parts.features[name], plan.payloads[name]
            self._parts.loop.await_rows(feature.rows_of(payload))
            feature.apply(payload)
        for request in plan.begun:
            self._begin(request)
        for blocks in plan.blocks:
            self._parts.blocks.append(blocks)
        for table in self._all_tables:
            table.flush()


class Forwards:
    """Those of one step, from the rows as its plan has left them."""

    def __init__(self, parts: RunnerParts, plan: StepPlan) -> None:
        self._loop = parts.loop
        self._num_together = plan.num_together
        self._depth = plan.width - 1
        first = BatchLayout.of(plan)
        for name, payload in plan.payloads.items():
            first = parts.features[name].mark(first, payload)
        self._first = parts.forward.with_inputs(first)
        self._following = parts.forward.with_inputs(self._first.following(plan.width, plan.waits))
        self._draws = parts.sampler.only_draws(self._following.sampling_np)
        self._hooks = [hook for hook in parts.hooks if hook.active(plan.rows_np)]  # of the first
        self._waiting = plan.waits
        self.waits = bool(plan.waits)  # the first, before tokens are chosen
        self._computed = Computed(self._first)  # the first, while it waits
        self._asked = 0  # forwards, meanwhile

    def launch(self, first: int, count: int) -> Iterator[Part]:
        """Queues some of them, in parts."""
        done, end = first, first + count
        if done == 0 and (self._hooks or self._first is not self._following):
            yield self._loop.launch(self._first, self._draws, self._hooks, self._depth)
            done = 1
        yield from self._launch_following(done, end)

    def compute(self, count: int) -> None:
        """Queues the first of so many, but for the choice of tokens."""
        self._computed, self._asked = self._loop.compute(self._first, self._hooks, self._depth), count

    def go_on(self) -> Iterator[Part]:
        """Queues what was asked for, after what `compute` has queued."""
        yield self._loop.choose(self._computed, self._waiting)
        self._computed = Computed(self._first)  # its tensors are used up
        yield from self._launch_following(1, self._asked)

    def _launch_following(self, done: int, end: int) -> Iterator[Part]:
        while done < end:
            count = ForwardCount(end - done, min(end - done, self._num_together))
            part = self._loop.launch(self._following, self._draws, [], self._depth, count)
            done += part.num_forwards
            yield part

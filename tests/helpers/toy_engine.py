"""The loop around the scheduler and the toy device, with the checks that hold for every plan."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from cadence.config.engine_config import CacheConfig, SchedulerConfig
from cadence.core.contract.request import EngineRequest, FinishReason
from cadence.core.contract.step import NO_TOKEN, StepPlan, StepResult
from cadence.core.contract.update import RequestUpdate
from cadence.core.failure import Failure
from cadence.core.inputs.encoder_input import ENCODER
from cadence.core.model.kv_spec import KVLayout
from cadence.scheduler.budget import ONE_TOKEN, RunLimits
from cadence.scheduler.burst import needs_host
from cadence.scheduler.feature import HostFeature
from cadence.scheduler.features.adapters.slots import AdapterSlots
from cadence.scheduler.features.drafts.feature import HostDrafts
from cadence.scheduler.features.drafts.policy import DraftPolicy
from cadence.scheduler.features.encoder.feature import EncoderContents
from cadence.scheduler.features.states.feature import StateSnapshots
from cadence.scheduler.features.states.snapshots import Snapshots
from cadence.scheduler.scheduler import Scheduler
from tests.helpers.toy_model import ToyDevice, expected_output, make_layout, work
from tests.helpers.toy_source import SOURCE, needed_by, window_of
from tests.helpers.toy_states import ToyStates


def make_config(**changes: object) -> SchedulerConfig:
    fields: dict[str, object] = {
        "max_num_seqs": 4,
        "max_num_batched_tokens": 16,
        "policy": "fcfs",
        "enable_chunked_prefill": True,
        "long_prefill_token_threshold": 0,
        "steps_in_flight": 1,
    }
    return SchedulerConfig(**(fields | changes))  # type: ignore[arg-type]


def make_cache(block_size: int, caching: bool = True) -> CacheConfig:
    return CacheConfig(block_size, caching, 0.9, 0, 0)


@dataclass
class Flight:
    plan: StepPlan
    num_forwards: int
    tables: dict[int, list[list[int]]]  # by row, per group
    done: int = 0  # forwards that have run

    @property
    def rows(self) -> set[int]:
        return set(self.plan.rows_np.tolist())

    def blocks_ahead(self, layout: KVLayout, computed_by_now: dict[int, int]) -> set[int]:
        """Blocks that forwards yet to run may read or write; computed_by_now: tokens, by row of the device."""
        ahead: set[int] = set()
        size = layout.block_size
        for row, count, computed, lines in work(self.plan):
            start = computed if not self.done else computed + count - max(lines - 1, 0) + self.done - 1
            start = min(start, computed_by_now.get(row, start))  # drafts were planned for that may not be kept
            end = computed + count + (self.num_forwards - 1) * self.plan.width * (lines > 0)
            for group, table in zip(layout.groups, self.tables[row], strict=True):
                ahead.update(needed_by(window_of(group), table, start, end, size) if start < end else ())
        return ahead - {0}


@dataclass
class Outcome:
    request: EngineRequest
    tokens: list[int] = field(default_factory=list)
    finish: list[tuple[FinishReason, int | str | None]] = field(default_factory=list)
    num_cached: int = 0
    preemptions: int = 0


class ToyEngine:
    """The loop around scheduler and device. Checks what a plan may do while others are in flight."""

    def __init__(
        self,
        config: SchedulerConfig,
        layout: KVLayout,
        num_blocks: int,
        max_model_len: int,
        caching: bool = True,
        drafts: DraftPolicy | None = None,
        num_snapshots: int | None = None,
    ) -> None:
        """num_snapshots: of a model with states, which caches prefixes where there are some; None = it has no states"""
        self.config = config
        self.layout = layout
        self.max_model_len = max_model_len
        self.has_states = num_snapshots is not None
        caching = caching and num_snapshots != 0
        cache = make_cache(layout.block_size, caching)
        self.slots = AdapterSlots(config.adapter_slots)
        features: list[HostFeature] = [self.slots] if self.slots.count else []
        if num_snapshots and caching:
            features.append(StateSnapshots(Snapshots(num_snapshots), layout.block_size, least_gain=layout.block_size))
        if SOURCE in self.windows:
            features.append(EncoderContents(layout.groups, config.max_num_encoder_tokens, self.slots.slot_of))
        if drafts is not None:
            features.append(HostDrafts(drafts, config.max_num_seqs))
        self.scheduler = Scheduler(config, cache, layout, num_blocks, max_model_len, features, runs_of(drafts))
        states = None if num_snapshots is None else ToyStates(config.max_num_seqs, num_snapshots)
        self.device = ToyDevice(layout, config.max_num_seqs, num_blocks, states)
        self.tables: dict[int, list[list[int]]] = {}  # by row, per group: as the plans sent will leave them
        self.in_flight: deque[Flight] = deque()
        self.outcomes: dict[str, Outcome] = {}
        self.part_size = 0  # forwards that come back at a time, 0 = all
        self.cuts = False  # whether bursts are cut when the scheduler wants it
        self.seconds = 0.0  # of a forward, as the scheduler is told; 0 = it is told nothing

    @property
    def windows(self) -> tuple[int, ...]:
        return tuple(window_of(group) for group in self.layout.groups)

    @property
    def device_is_busy(self) -> bool:
        """Some row has not been given back."""
        return self.scheduler._rows.num_free < self.config.max_num_seqs

    @property
    def is_full(self) -> bool:
        return len(self.in_flight) >= self.config.steps_in_flight

    def add(self, request: EngineRequest) -> None:
        self.scheduler.add(request)
        self.outcomes[request.request_id] = Outcome(request)

    def abort(self, request_ids: list[str], reason: FinishReason = FinishReason.ABORT) -> None:
        self._take(self.scheduler.abort(request_ids, reason))

    def launch(self) -> StepPlan:
        plan = self.scheduler.schedule()
        if len(plan.rows_np):
            self._check_plan(plan)
            self._check_burst(plan)
            self._check_encoding(plan)
            self._follow_tables(plan)
            rows = plan.rows_np.tolist()
            self.in_flight.append(Flight(plan, plan.num_forwards, {row: self.tables[row] for row in rows}))
        else:
            assert not (plan.begun or plan.blocks or plan.ended)
        return plan

    def settle(self, size: int = 0) -> list[RequestUpdate]:
        """Takes in the next `size` forwards of the oldest plan, or what is left of it."""
        flight = self.in_flight[0]
        count = min(size or flight.num_forwards, flight.num_forwards - flight.done)
        sampled, errors = [], dict[int, Failure]()
        for _ in range(count):
            sampled.append(self._forward(flight, errors))
        result = result_of(flight.plan, *sampled, errors=errors)
        if flight.done == flight.num_forwards:
            self.in_flight.popleft()
            if self.seconds:
                self.scheduler.observe_time(flight.plan, self.seconds * flight.num_forwards)
        return self._take(self.scheduler.update(result))

    def cut(self, num_run: int) -> None:
        """Gives up forwards of the newest plan; those that have run, and one at least, stay."""
        flight = self.in_flight[-1]
        num_run = min(max(1, flight.done, num_run), flight.num_forwards)
        step = self.scheduler.in_flight(flight.plan.step_id)
        step.num_queued = num_run
        self.scheduler.cut(step)
        flight.num_forwards = num_run
        if flight.done == num_run:
            self.in_flight.pop()

    def step(self) -> StepPlan:
        """One turn of the loop: launch if there is something to do, settle a part if enough is in flight."""
        plan = self.in_flight[-1].plan if self.is_full else self.launch()
        if self.in_flight and (self.is_full or not len(plan.rows_np)):
            self.settle(self.part_size)
        if self.cuts and len(self.in_flight) == 1:
            flight = self.in_flight[0]
            if self.scheduler.wants_cut(self.scheduler.in_flight(flight.plan.step_id)):
                self.cut(flight.done)
        return plan

    def drain(self, max_steps: int = 5000) -> None:
        for _ in range(max_steps):
            if not self.scheduler.has_unfinished():
                break
            idle = not self.in_flight
            plan = self.step()
            assert len(plan.rows_np) or not idle, "nothing in flight, nothing to do, and requests unfinished"
        else:
            raise AssertionError("no end in sight")
        assert not self.in_flight

    def _forward(self, flight: Flight, errors: dict[int, Failure]) -> list[list[int]]:
        flight.done += 1
        if flight.done > 1:
            return self.device.next_forward(flight.plan, errors)
        self.device.apply(flight.plan)
        sampled = self.device.first_forward(flight.plan, errors)
        self._check_salts(flight.plan)
        return sampled

    def _take(self, updates: list[RequestUpdate]) -> list[RequestUpdate]:
        assert len({update.request_id for update in updates}) == len(updates)
        for update in updates:
            outcome = self.outcomes[update.request_id]
            assert not outcome.finish, "news of a request that has ended"
            assert update.new_token_ids or update.prompt_logprobs or update.finish_reason, "no news"
            outcome.tokens.extend(update.new_token_ids)
            outcome.num_cached, outcome.preemptions = update.num_cached_tokens, update.num_preemptions
            if update.finish_reason is not None:
                outcome.finish.append((update.finish_reason, update.stop_reason))
        return updates

    def _follow_tables(self, plan: StepPlan) -> None:
        for new in plan.begun:
            self.tables[new.row] = [list(ids) for ids in new.block_ids]
        for added in plan.blocks:
            self.tables[added.row][added.group].extend(added.block_ids)

    def _check_plan(self, plan: StepPlan) -> None:
        assert plan.total_tokens <= self.config.max_num_batched_tokens
        size = self.layout.block_size
        fresh = {block for added in plan.blocks for block in added.block_ids}
        for new in plan.begun:
            for flight in self.in_flight:
                assert new.row not in flight.rows, "a row reused while a step naming it is in flight"
            for window, ids in zip(self.windows, new.block_ids, strict=True):
                fresh.update(ids[new.num_computed // size :] if window != SOURCE else ())
        fresh.update(block for content in plan.payloads.get(ENCODER, ()) for ids in content.block_ids for block in ids)
        assert 0 not in fresh
        computed = {row: state.computed for row, state in self.device.rows.items()}
        for flight in self.in_flight:
            if not flight.done:
                computed |= {new.row: new.num_computed for new in flight.plan.begun}
            ahead = flight.blocks_ahead(self.layout, computed)
            assert not fresh & ahead, "a block reused while a step in flight needs it"

    def _check_burst(self, plan: StepPlan) -> None:
        config, num_forwards = self.config, plan.num_forwards
        assert 1 <= num_forwards <= config.burst_steps
        if num_forwards == 1:
            return
        requests = [self.scheduler._rows.requests[row].request for row in plan.rows_np.tolist()]
        assert not any(needs_host(request.params) for request in requests)
        if config.burst_seconds:
            assert num_forwards & (num_forwards - 1) == 0
            assert not (plan.begun or self.scheduler.stats().num_waiting), "a request waits"
            assert (plan.num_tokens_np == plan.num_samples_np).all()

    def _check_encoding(self, plan: StepPlan) -> None:
        """Within the budget, or one content alone; each goes where a row that begins will read it, and nowhere else."""
        contents = plan.payloads.get(ENCODER, [])
        lengths = [content.length for content in contents]
        assert len(lengths) <= 1 or sum(lengths) <= self.config.max_num_encoder_tokens
        for content in contents:
            tables = [new.block_ids for new in plan.begun if new.payloads[ENCODER] == content.length]
            for group, ids in enumerate(content.block_ids):
                assert not ids or any(table[group] == ids for table in tables)
        written = [block for content in contents for ids in content.block_ids for block in ids]
        assert len(written) == len(set(written)), "a content encoded twice"

    def _check_salts(self, plan: StepPlan) -> None:
        """Of a plan that has run: what it found in the cache was computed under the same salt."""
        for new in plan.begun:
            salt = self.outcomes[new.request_id].request.cache_salt
            for window, ids in zip(self.windows, new.block_ids, strict=True):
                if window == SOURCE:
                    continue
                for block in filter(None, ids[: new.num_computed // self.layout.block_size]):
                    assert self.outcomes[self.device.writer[block]].request.cache_salt == salt, "shared across salts"


def runs_of(drafts: DraftPolicy | None) -> RunLimits:
    return ONE_TOKEN if drafts is None else RunLimits(1 + drafts.most, drafts.reserve, drafts.padded)


def make_engine(num_blocks: int = 60, max_model_len: int = 40, caching: bool = True, **config: object) -> ToyEngine:
    return ToyEngine(make_config(**config), make_layout((0,), 4), num_blocks, max_model_len, caching)


def begun(plan: StepPlan) -> list[str]:
    return [new.request_id for new in plan.begun]


def check_tokens(engine: ToyEngine) -> None:
    for outcome in engine.outcomes.values():
        tokens, reason = expected_output(outcome.request, engine.windows, engine.max_model_len, engine.has_states)
        assert (outcome.tokens, [finish for finish, _ in outcome.finish]) == (tokens, [reason])


def result_of(plan: StepPlan, *forwards: int | Sequence[int | list[int]], **extra: object) -> StepResult:
    """Every row that sampled got the same token in a forward; or a list says which each got, or which several."""
    num_rows = int((plan.num_samples_np > 0).sum())
    tokens_np = np.full((len(forwards) or plan.num_forwards, num_rows, plan.width), NO_TOKEN, dtype=np.int32)
    for forward_np, forward in zip(tokens_np, forwards or [7] * plan.num_forwards, strict=True):
        for row_np, tokens in zip(
            forward_np, [forward] * num_rows if isinstance(forward, int) else forward, strict=True
        ):
            got = [tokens] if isinstance(tokens, int) else tokens
            row_np[: len(got)] = got
    drafts_np = np.full(tokens_np.shape[:2], plan.width - 1, dtype=np.int32)
    return StepResult(plan.step_id, tokens_np, drafts_np, **extra)  # type: ignore[arg-type]

"""A model without numbers: what it stores for a token, and the token it says next, hash what it reads.

The device half applies plans to tables of its own and reads the past only through the block tables, as attention
does: whoever reads a block that is not his, or no longer, says something else than the same request alone.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import numpy as np

from cadence.config.engine_config import CacheConfig, SchedulerConfig
from cadence.core.kv_spec import KVGroup, KVLayout
from cadence.core.request import EngineRequest, FinishReason, StopRule
from cadence.core.sampling_params import SamplingParams
from cadence.core.step import NewRow, StepPlan, StepResult
from cadence.core.update import RequestUpdate
from cadence.scheduler.scheduler import Scheduler

VOCAB = 11


def make_layout(windows: tuple[int, ...], block_size: int) -> KVLayout:
    return KVLayout(block_size, 1, 1, tuple(KVGroup(window, (layer,)) for layer, window in enumerate(windows)))


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


def make_request(
    request_id: str, prompt: list[int], max_tokens: int = 4, *, stop: StopRule | None = None, **changes: object
) -> EngineRequest:
    fields: dict[str, object] = {"sampling": SamplingParams(max_tokens=max_tokens), "seed": 0, "arrival_time": 0.0}
    rule = stop or StopRule(frozenset(), frozenset(), 0, max_tokens)
    return EngineRequest(request_id=request_id, prompt_token_ids=prompt, stop=rule, **(fields | changes))  # type: ignore[arg-type]


def entry_of(token: int, position: int, visible: list[int]) -> int:
    """What a layer stores for a token: it depends on everything the token sees."""
    return hash((token, position, *visible))


def first_visible(window: int, position: int) -> int:
    return max(0, position - window + 1) if window else 0


def expected_output(request: EngineRequest, windows: tuple[int, ...], max_model_len: int) -> tuple[list[int], str]:
    """The tokens and the finish reason of a request that is alone in the world, without blocks or steps."""
    tokens = list(request.prompt_token_ids)
    rule = request.stop
    entries: list[list[int]] = [[] for _ in windows]
    while True:
        for stored, window in zip(entries, windows, strict=True):
            for position in range(len(stored), len(tokens)):
                stored.append(entry_of(tokens[position], position, stored[first_visible(window, position) : position]))
        token = hash(tuple(stored[-1] for stored in entries)) % VOCAB
        tokens.append(token)
        output = tokens[len(request.prompt_token_ids) :]
        if len(output) >= rule.min_tokens and token in rule.eos_token_ids | rule.stop_token_ids:
            return output, "stop"
        if len(output) == rule.max_tokens or len(tokens) == max_model_len:
            return output, "length"


@dataclass
class ToyRow:
    request_id: str
    tokens: list[int]
    computed: int
    tables: list[list[int]]
    max_len: int


class ToyDevice:
    def __init__(self, layout: KVLayout, num_rows: int, num_blocks: int) -> None:
        self.layout = layout
        self.num_rows = num_rows
        self.rows: dict[int, ToyRow] = {}
        self.kv = [[0] * layout.block_size for _ in range(num_blocks)]
        self.writer = [""] * num_blocks  # request that last wrote into a block

    def run(self, plan: StepPlan) -> StepResult:
        for row in plan.ended:
            del self.rows[row]
        for new in plan.begun:
            self._begin(new)
        for added in plan.blocks:
            table = self.rows[added.row].tables[added.group]
            assert len(table) == added.start, "blocks must be appended"
            table.extend(added.block_ids)
        assert len(set(plan.rows_np.tolist())) == len(plan.rows_np), "a row twice in one step"
        columns = (plan.rows_np, plan.num_tokens_np, plan.num_computed_np, plan.samples_np)
        sampled = []
        for row, count, computed, samples in zip(*(column.tolist() for column in columns), strict=True):
            token = self._compute(self.rows[row], count, computed)
            state = self.rows[row]
            assert samples == (state.computed == len(state.tokens)), "samples at the last token and only there"
            if samples:
                state.tokens.append(token)
                assert len(state.tokens) <= state.max_len
                sampled.append(token)
        return StepResult(plan.step_id, np.array(sampled, dtype=np.int32))

    def _begin(self, new: NewRow) -> None:
        assert 0 <= new.row < self.num_rows and new.row not in self.rows
        assert new.num_computed < len(new.token_ids_np), "at least one token is computed"
        tables = [list(ids) for ids in new.block_ids]
        self.rows[new.row] = ToyRow(new.request_id, new.token_ids_np.tolist(), new.num_computed, tables, new.max_len)

    def _compute(self, row: ToyRow, count: int, computed: int) -> int:
        assert count >= 1 and computed == row.computed, "a token computed twice or skipped"
        assert computed + count <= len(row.tokens)
        last = []
        for group, table in zip(self.layout.groups, row.tables, strict=True):
            for position in range(computed, computed + count):
                first = first_visible(group.window, position)
                visible = [self._slot(table, past) for past in range(first, position)]
                value = entry_of(row.tokens[position], position, visible)
                block = table[position // self.layout.block_size]
                assert block != 0, "nothing may be written to the null block"
                self.kv[block][position % self.layout.block_size] = value
                self.writer[block] = row.request_id
            last.append(value)
        row.computed += count
        return hash(tuple(last)) % VOCAB

    def _slot(self, table: list[int], position: int) -> int:
        block = table[position // self.layout.block_size]
        assert block != 0, "nothing may be read from the null block"
        return self.kv[block][position % self.layout.block_size]

    def blocks_used(self, plan: StepPlan) -> set[int]:
        """Blocks that the plan, already run, reads or writes."""
        used: set[int] = set()
        size = self.layout.block_size
        for row, computed in zip(plan.rows_np.tolist(), plan.num_computed_np.tolist(), strict=True):
            state = self.rows[row]
            for group, table in zip(self.layout.groups, state.tables, strict=True):
                used.update(table[first_visible(group.window, computed) // size : -(-state.computed // size)])
        return used


@dataclass
class Flight:
    plan: StepPlan
    result: StepResult
    rows: set[int]
    blocks: set[int]


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
        self, config: SchedulerConfig, layout: KVLayout, num_blocks: int, max_model_len: int, caching: bool = True
    ) -> None:
        self.config = config
        self.layout = layout
        self.max_model_len = max_model_len
        self.scheduler = Scheduler(config, make_cache(layout.block_size, caching), layout, num_blocks, max_model_len)
        self.device = ToyDevice(layout, config.max_num_seqs, num_blocks)
        self.in_flight: deque[Flight] = deque()
        self.outcomes: dict[str, Outcome] = {}

    @property
    def windows(self) -> tuple[int, ...]:
        return tuple(group.window for group in self.layout.groups)

    def add(self, request: EngineRequest) -> None:
        self.scheduler.add(request)
        self.outcomes[request.request_id] = Outcome(request)

    def abort(self, request_ids: list[str], reason: FinishReason = FinishReason.ABORT) -> None:
        self._take(self.scheduler.abort(request_ids, reason))

    def launch(self) -> StepPlan:
        plan = self.scheduler.schedule()
        if len(plan.rows_np):
            self._check_plan(plan)
            result = self.device.run(plan)
            self._check_salts(plan)
            self.in_flight.append(Flight(plan, result, set(plan.rows_np.tolist()), self.device.blocks_used(plan)))
        else:
            assert not (plan.begun or plan.blocks or plan.ended)
        return plan

    def settle(self) -> list[RequestUpdate]:
        flight = self.in_flight.popleft()
        return self._take(self.scheduler.update(flight.plan, flight.result))

    def step(self) -> StepPlan:
        """One turn of the loop: launch if there is something to do, settle if enough is in flight."""
        plan = self.launch()
        if self.in_flight and (len(self.in_flight) >= self.config.steps_in_flight or not len(plan.rows_np)):
            self.settle()
        return plan

    def drain(self, max_steps: int = 5000) -> None:
        for _ in range(max_steps):
            if not self.scheduler.has_unfinished():
                return
            idle = not self.in_flight
            plan = self.step()
            assert len(plan.rows_np) or not idle, "nothing in flight, nothing to do, and requests unfinished"
        raise AssertionError("no end in sight")

    def _take(self, updates: list[RequestUpdate]) -> list[RequestUpdate]:
        assert len({update.request_id for update in updates}) == len(updates)
        for update in updates:
            outcome = self.outcomes[update.request_id]
            assert not outcome.finish, "news of a request that has ended"
            outcome.tokens.extend(update.new_token_ids)
            outcome.num_cached, outcome.preemptions = update.num_cached_tokens, update.num_preemptions
            if update.finish_reason is not None:
                outcome.finish.append((update.finish_reason, update.stop_reason))
        return updates

    def _check_plan(self, plan: StepPlan) -> None:
        assert plan.total_tokens <= self.config.max_num_batched_tokens
        size = self.layout.block_size
        fresh = {block for added in plan.blocks for block in added.block_ids}
        for new in plan.begun:
            for flight in self.in_flight:
                assert new.row not in flight.rows, "a row reused while a step naming it is in flight"
            for ids in new.block_ids:
                fresh.update(ids[new.num_computed // size :])
        assert 0 not in fresh
        for flight in self.in_flight:
            assert not fresh & flight.blocks, "a block reused while a step naming it is in flight"

    def _check_salts(self, plan: StepPlan) -> None:
        """Of a plan that has run: what it found in the cache was computed under the same salt."""
        for new in plan.begun:
            salt = self.outcomes[new.request_id].request.cache_salt
            for ids in new.block_ids:
                for block in filter(None, ids[: new.num_computed // self.layout.block_size]):
                    assert self.outcomes[self.device.writer[block]].request.cache_salt == salt, "shared across salts"


def make_engine(num_blocks: int = 60, max_model_len: int = 40, caching: bool = True, **config: object) -> ToyEngine:
    return ToyEngine(make_config(**config), make_layout((0,), 4), num_blocks, max_model_len, caching)


def work(plan: StepPlan) -> list[tuple[int, int, int, bool]]:
    """(row, tokens, computed before, samples) of each row."""
    columns = (plan.rows_np, plan.num_tokens_np, plan.num_computed_np, plan.samples_np)
    return list(zip(*(column.tolist() for column in columns), strict=True))


def begun(plan: StepPlan) -> list[str]:
    return [new.request_id for new in plan.begun]


def check_tokens(engine: ToyEngine) -> None:
    for outcome in engine.outcomes.values():
        tokens, reason = expected_output(outcome.request, engine.windows, engine.max_model_len)
        assert (outcome.tokens, [finish for finish, _ in outcome.finish]) == (tokens, [reason])


def result_of(plan: StepPlan, token: int = 7, **extra: object) -> StepResult:
    tokens_np = np.full(int(plan.samples_np.sum()), token, dtype=np.int32)
    return StepResult(plan.step_id, tokens_np, **extra)  # type: ignore[arg-type]

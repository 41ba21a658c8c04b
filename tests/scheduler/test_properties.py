"""A state machine over scheduler, KV manager and a toy device: whatever happens, in whatever order, in bursts of
whatever length, no block is lost, no token computed twice, nothing is cached that was not computed, and every request
says what it would have said alone."""

from __future__ import annotations

import math
from collections import Counter
from types import SimpleNamespace
from typing import Any

import hypothesis.strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from cadence.core.contract.request import FinishReason, StopRule
from cadence.core.inputs.encoder_input import EncoderInput
from cadence.core.sampling_params import SamplingParams
from cadence.scheduler.budget import TokenBudget
from cadence.scheduler.features.drafts.policy import DraftPolicy
from cadence.scheduler.kv.hashing import extend_hashes, root_digest, source_digests
from cadence.scheduler.kv.kinds.block import RequestBlocks
from cadence.scheduler.kv.sizing import blocks_needed
from cadence.scheduler.request_state import NO_ROW, Status
from cadence.scheduler.scheduler import Scheduler
from tests.helpers.toy_engine import Outcome, ToyEngine, make_config, runs_of
from tests.helpers.toy_model import BROKEN, VOCAB, entries_of, expected_output, make_layout, make_request
from tests.helpers.toy_source import MAX_SOURCE, SOURCE, chunks_of, source_of
from tests.helpers.wide import examples

MAX_LEN = 28
LAYOUTS = ((0,), (0,), (0, 6), (5,), (0, 3, 7), (SOURCE, 0), (SOURCE, 0, 5), (SOURCE, SOURCE, 0))  # windows
LAYOUTS += ((0, chunks_of(6)), (chunks_of(5),), (0, 3, chunks_of(8)))
DEVICE_PROCESSOR = SimpleNamespace(on_device=True)
SOURCES = ([3], [1, 2, 3], [4] * MAX_SOURCE, [*range(9)], [*range(10)])
SHARED = [[1, 2, 3, 4, 5, 6, 7, 8] * 3, [1, 2, 3, 4, 9, 9, 9, 9] * 3, [5] * 24]


def check_blocks(scheduler: Scheduler) -> None:
    """Free and used blocks make up the pool; each is counted as often as a table names it."""
    pool = scheduler._kv._pool
    named = Counter(
        block.id for state in scheduler._rows.requests.values() for table in state.blocks.tables for block in table
    )
    named.pop(0, None)
    free = [block.id for block in pool.free]
    assert len(free) == len(set(free)) == pool.num_free
    assert sorted([*free, *named]) == list(range(1, pool.num_blocks)), "leaked, or free and used at once"
    assert {block.id: block.ref for block in pool.blocks.values() if block.ref} == dict(named)
    for group, blocks in enumerate(pool.index.by_group):
        assert all(block.digest == digest and block.group == group for digest, block in blocks.items())
    assert sum(map(len, pool.index.by_group)) == sum(block.digest != b"" for block in pool.blocks.values())


def check_requests(scheduler: Scheduler) -> None:
    size = scheduler._kv.block_size
    rows = scheduler._rows
    assert len(scheduler._waiting) == sum(s.status is Status.WAITING for s in scheduler._requests.values())
    keys = [request.key for request in scheduler._running._requests]
    assert keys == sorted(keys) or not scheduler._running._by_key
    for state in scheduler._requests.values():
        assert state.row != NO_ROW or not any(state.blocks.tables)
        fresh = RequestBlocks(1, state.blocks.root)
        extend_hashes(fresh, state.tokens, size, len(state.tokens) // size)
        assert state.blocks.hashes == fresh.hashes[: len(state.blocks.hashes)], "hash of tokens not known"
        if state.status is Status.RUNNING:
            assert rows.known_np[state.row] == len(state.tokens)
            computed = min(int(rows.computed_np[state.row]), state.max_len - 1)  # a burst is booked beyond its end
            assert rows.confirmed_np[state.row] <= computed <= rows.capacity_np[state.row]
            assert len(state.tokens) <= rows.length_np[state.row]
            for kind, table in zip(scheduler._kv._kinds, state.blocks.tables, strict=True):
                assert len(table) == kind.growth.length(int(rows.capacity_np[state.row]), state.blocks.source_len)
            if not rows.due_np[state.row]:
                assert len(state.tokens) == rows.length_np[state.row], "what was booked and did not come is given back"


def check_cache(engine: ToyEngine) -> None:
    """Between plans: every block in the prefix index holds what the tokens of its digest give."""
    size, entries = engine.layout.block_size, dict[bytes, list[list[int]]]()  # digest -> per group what its block holds
    for state in engine.outcomes.values():
        tokens = [*state.request.prompt_token_ids, *state.tokens]
        blocks = RequestBlocks(1, root_digest(state.request.cache_salt, state.request.keys_digest))
        extend_hashes(blocks, tokens, size, len(tokens) // size)
        stored = [entries_of(tokens, window) for window in engine.windows]
        for index, digest in enumerate(blocks.hashes):
            entries[digest] = [values[index * size : (index + 1) * size] for values in stored]
        source = source_of(state.request)
        for index, digest in enumerate(source_digests(blocks.root, -(-len(source) // size))):
            entries[digest] = [source[index * size : (index + 1) * size] for _ in stored]
    for group, listed in enumerate(engine.scheduler._kv._pool.index.by_group):
        for digest, block in listed.items():
            expected = entries[digest][group]
            assert engine.device.kv[block.id][: len(expected)] == expected, "cached, but not computed"


def check_outcome(outcome: Outcome, windows: tuple[int, ...], has_states: bool) -> None:
    tokens, reason = expected_output(outcome.request, windows, MAX_LEN, has_states)
    (finish,) = outcome.finish
    if finish[0] is FinishReason.ERROR or len(outcome.tokens) < len(tokens):
        assert finish in ((FinishReason.ABORT, None), (FinishReason.STOP, None), (FinishReason.ERROR, BROKEN))
        assert outcome.tokens == tokens[: len(outcome.tokens)]
    else:
        assert (outcome.tokens, finish[0]) == (tokens, reason)


@st.composite
def request_specs(draw: st.DrawFn) -> dict[str, Any]:
    """Arguments of `make_request`."""
    stem, cut = draw(st.sampled_from(SHARED)), draw(st.integers(0, 24))
    max_tokens = draw(st.sampled_from([1, 2, 6, 40]))
    ids = st.frozensets(st.integers(0, VOCAB - 1), max_size=2)
    rule = StopRule(draw(ids), draw(ids), draw(st.integers(0, min(3, max_tokens))), max_tokens)
    sampling = SamplingParams(max_tokens=max_tokens, min_tokens=rule.min_tokens)
    sampling.skip_reading_prefix_cache = draw(st.sampled_from([False, False, True]))
    sampling.logits_processors = draw(st.sampled_from([None, None, None, [DEVICE_PROCESSOR], [max]]))
    return {
        "prompt": [*stem[:cut], *draw(st.lists(st.integers(0, 9), max_size=3))] or [0],
        "stop": rule,
        "params": sampling,
        "priority": draw(st.integers(0, 2)),
        "tenant": draw(st.sampled_from("aab")),
        "weight": draw(st.sampled_from((1.0, 1.0, 4.0))),
        "source": draw(st.sampled_from(SOURCES)),
        "cache_salt": draw(st.sampled_from(["", "", "pepper"])),
    }


class SchedulerMachine(RuleBasedStateMachine):
    burst_steps: tuple[int, ...] = (1,)
    burst_seconds: tuple[float, ...] = (0.0,)
    paces: tuple[float, ...] = (0.0, 0.7)
    num_rows: tuple[int, ...] = (1, 3, 4, 6)
    budgets: tuple[int, ...] = (1, 3, 8, 16, 40)
    spare_blocks: tuple[int, ...] = (0, 1, 3, 8, 60)
    num_drafts: tuple[int, ...] = (0,)
    layouts: tuple[tuple[int, ...], ...] = LAYOUTS
    num_snapshots: tuple[int | None, ...] = (None,)

    @initialize(data=st.data())
    def start(self, data: st.DataObject) -> None:
        def draw(*choices: object) -> object:
            return data.draw(st.sampled_from(choices))

        chunked = draw(True, True, True, False)
        config = make_config(
            max_num_seqs=draw(*self.num_rows),
            max_num_batched_tokens=draw(*self.budgets) if chunked else 40,
            policy=draw("fcfs", "priority", "fair"),
            enable_chunked_prefill=chunked,
            long_prefill_token_threshold=draw(0, 0, 5),
            steps_in_flight=draw(1, 1, 2, 3),
            burst_steps=draw(*self.burst_steps),
            burst_seconds=draw(*self.burst_seconds),
            max_inter_token_seconds=draw(*self.paces),
            min_prompt_tokens=draw(1, 2),
            max_encoder_len=MAX_SOURCE,
            max_num_encoder_tokens=draw(1, MAX_SOURCE, 3 * MAX_SOURCE),
        )
        layout = make_layout(draw(*self.layouts), draw(1, 2, 4))  # type: ignore[arg-type]
        drafts = drafts_of(data.draw(st.sampled_from(self.num_drafts)), config.max_num_seqs, bool(draw(True, False)))
        in_flight = TokenBudget.of(config, MAX_LEN, runs_of(drafts)).in_flight
        least = blocks_needed(layout, MAX_LEN, in_flight, MAX_SOURCE)
        num_blocks = least + draw(*self.spare_blocks)  # type: ignore[operator]
        caching = bool(draw(True, True, True, False))
        num_snapshots = data.draw(st.sampled_from(self.num_snapshots))
        self.engine = ToyEngine(config, layout, num_blocks, MAX_LEN, caching, drafts, num_snapshots)
        self.engine.part_size = draw(0, 1, 2, 3)  # type: ignore[assignment]
        self.engine.cuts = bool(draw(True, False))
        self.engine.seconds = draw(0.2, 0.5, 2.0)  # type: ignore[assignment]
        self.count = 0

    @rule(spec=request_specs())
    def add(self, spec: dict[str, Any]) -> None:
        self.count += 1
        source = spec["source"] if SOURCE in self.engine.windows else None
        attached = () if source is None else (EncoderInput.of_tokens(source),)
        given = {name: value for name, value in spec.items() if name != "source"}
        self.engine.add(make_request(f"r{self.count}", **given, attachments=attached))

    @rule(stem=st.sampled_from(SHARED), size=st.integers(3, 6), own=st.integers(0, 1))
    def crowd(self, stem: list[int], size: int, own: int) -> None:
        """Several that want to fill the pool, alike or each with a beginning of its own."""
        for number in range(size):
            prompt, source = [number * own, *stem[: 3 * number]], SOURCES[number * own % len(SOURCES)]
            self.add(
                {
                    "prompt": prompt,
                    "max_tokens": 40,
                    "priority": number % 2,
                    "tenant": "ab"[number % 2],
                    "source": source,
                }
            )

    @precondition(lambda self: not self.engine.is_full)
    @rule()
    def launch(self) -> None:
        self.engine.launch()

    @precondition(lambda self: self.engine.in_flight)
    @rule(size=st.integers(0, 3))
    def settle(self, size: int) -> None:
        self.engine.settle(size)

    @precondition(lambda self: self.engine.in_flight)
    @rule(num_run=st.integers(0, 6))
    def cut(self, num_run: int) -> None:
        self.engine.cut(num_run)

    @precondition(lambda self: self.engine.device.rows)
    @rule(data=st.data())
    def fail(self, data: st.DataObject) -> None:
        row = data.draw(st.sampled_from(sorted(self.engine.device.rows)))
        self.engine.device.rows[row].fails = True

    @rule(turns=st.integers(1, 12))
    def run(self, turns: int) -> None:
        for _ in range(turns):
            self.engine.step()
            check_blocks(self.engine.scheduler)

    @precondition(lambda self: self.count)
    @rule(data=st.data(), reason=st.sampled_from([FinishReason.ABORT, FinishReason.STOP]))
    def abort(self, data: st.DataObject, reason: FinishReason) -> None:
        number = data.draw(st.integers(max(1, self.count - 5), self.count))
        self.engine.abort([f"r{number}", "nobody"], reason)

    @rule()
    def reset_prefix_cache(self) -> None:
        scheduler = self.engine.scheduler
        is_idle = scheduler.stats().kv_usage == 0.0 if self.engine.windows else not self.engine.device_is_busy
        assert scheduler.reset_prefix_cache() == is_idle
        if is_idle:
            assert not any(scheduler._kv._pool.index.by_group)

    @invariant()
    def consistent(self) -> None:
        if hasattr(self, "engine"):
            check_blocks(self.engine.scheduler)
            check_requests(self.engine.scheduler)
            if not self.engine.in_flight:
                check_cache(self.engine)

    def teardown(self) -> None:
        if not hasattr(self, "engine"):
            return
        self.engine.drain()
        check_blocks(self.engine.scheduler)
        check_cache(self.engine)
        assert self.engine.scheduler.stats().kv_usage == 0.0
        assert self.engine.scheduler._rows.num_free == self.engine.config.max_num_seqs
        for outcome in self.engine.outcomes.values():
            check_outcome(outcome, self.engine.windows, self.engine.has_states)


class BurstMachine(SchedulerMachine):
    burst_steps = (7, 4, 2)


class AutomaticMachine(SchedulerMachine):
    burst_steps = (7, 4)
    burst_seconds = (math.inf, 1.0)
    num_rows, budgets, spare_blocks = (4, 6), (8, 16, 40), (8, 60)  # so that at times nobody waits


class DraftMachine(SchedulerMachine):
    burst_steps = (1, 1, 2, 5)
    num_drafts = (1, 3)


class StateMachine(SchedulerMachine):
    """Models with layers that keep a state: these alone, beside attention, and beside a window."""

    burst_steps = (1, 1, 4)
    num_drafts = (0, 0, 3)
    layouts = ((), (), (0,), (0, 6), (5,))
    num_snapshots = (0, 1, 2, 3, 8)


def drafts_of(most: int, num_rows: int, adaptive: bool) -> DraftPolicy | None:
    return DraftPolicy(most, num_rows, adaptive, padded=False) if most else None


TestSchedulerMachine, TestBurstMachine = SchedulerMachine.TestCase, BurstMachine.TestCase
TestAutomaticMachine, TestDraftMachine = AutomaticMachine.TestCase, DraftMachine.TestCase
TestStateMachine = StateMachine.TestCase
TestSchedulerMachine.settings = TestAutomaticMachine.settings = examples(8, 25, stateful_step_count=30)
for machine in (TestBurstMachine, TestDraftMachine, TestStateMachine):
    machine.settings = examples(10, 50, stateful_step_count=30)

"""The supervisor's decisions against an engine that dies anywhere: every request ends once, with its own tokens or an
honest error; nobody fails for a poison beside them; there is always a way out."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from cadence.core.contract.request import FinishReason
from cadence.core.contract.update import RequestUpdate
from cadence.core.failure import Failure, FailureCode
from cadence.engine.supervise.journal import MAX_DEATHS, JournalEntry
from cadence.engine.supervise.lifecycle import EngineStatus
from cadence.engine.supervise.limits import SupervisorLimits
from cadence.engine.supervise.supervision import PROBE_ID, Decision, Supervision
from tests.helpers.fake_engine import NEVER, FakeEngine, all_tokens, fatal_position, make_entry
from tests.helpers.wide import examples

LIMIT = 8  # requests handed over at once


@dataclass
class Reader:
    """What a client has seen."""

    entry: JournalEntry
    tokens: list[int] = field(default_factory=list)
    ends: list[tuple[FinishReason | None, Any]] = field(default_factory=list)

    @property
    def is_poison(self) -> bool:
        return 0 <= fatal_position(self.entry.request) < self.entry.request.stop.max_tokens


class World:
    """A supervision, its engine and its readers; does what `supervisor.py` does, in one thread."""

    def __init__(self, limits: SupervisorLimits) -> None:
        self.logic = Supervision(limits)
        self.engine = FakeEngine()
        self.readers: dict[str, Reader] = {}
        self.now = 0.0
        self.prefill = 0
        self.num_deaths = 0
        self.logic.start()

    @property
    def status(self) -> EngineStatus:
        return self.logic.status

    def open(self) -> list[Reader]:
        return [reader for reader in self.readers.values() if not reader.ends]

    def submit(self, entry: JournalEntry) -> None:
        self.readers[entry.request_id] = Reader(entry)
        self.logic.journal.add(entry)
        self.hand_over()

    def drop(self, name: str) -> None:
        self.readers[name].ends.append((FinishReason.ABORT, None))
        if self.logic.journal.drop(name):
            self.engine.aborts.append(name)
        self.hand_over()

    def hand_over(self) -> None:
        while due := self.logic.due(self.now, LIMIT):
            self.engine.add(due, 0 if due[0].request_id == PROBE_ID else self.prefill)

    def ready(self) -> None:
        self.logic.ready(self.now)
        self.hand_over()

    def step(self, lost: bool = False) -> None:
        """lost: an engine that dies in this step has not told of its last tokens."""
        self.now += 0.01
        if self.engine.is_killed():
            if not lost:
                killers = {n for n, row in self.engine.inside.items() if len(row.tokens) == fatal_position(row.request)}
                self.deliver([update for update in self.engine.step() if update.request_id not in killers])
            self.die()
        else:
            self.deliver(self.engine.step())

    def abort_in_engine(self) -> None:
        self.deliver(self.engine.abort())

    def deliver(self, updates: list[RequestUpdate]) -> None:
        self._read(self.logic.take(updates))
        self.hand_over()

    def die(self) -> None:
        self.num_deaths += 1
        self.engine = FakeEngine()
        self.follow(self.logic.died(self.now))

    def follow(self, decision: Decision) -> None:
        self._read(decision.failed)
        if decision.give_up:
            assert self.status is EngineStatus.GIVEN_UP
        else:
            assert self.status is EngineStatus.BACKING_OFF and 0 < decision.backoff_s <= 5.0

    def restart(self) -> None:
        self.logic.start()

    def run_dry(self, max_steps: int = 50_000) -> None:
        """Nothing more comes from outside: what is open ends by itself."""
        for _ in range(max_steps):
            if not self.open() or self.logic.is_over:
                return
            if self.status is EngineStatus.BACKING_OFF:
                self.restart()
            elif self.status is EngineStatus.STARTING:
                self.ready()
            else:
                self.abort_in_engine()
                self.step()
        raise AssertionError(f"no end in sight: {self.status}, {self.open()}")

    def _read(self, updates: list[RequestUpdate]) -> None:
        for update in updates:
            reader = self.readers[update.request_id]
            assert not reader.ends, "news of a request that has ended"
            reader.tokens += update.new_token_ids
            if update.finish_reason is not None:
                reader.ends.append((update.finish_reason, update.stop_reason))


class SupervisorMachine(RuleBasedStateMachine):
    """Deaths by poison, before an engine is ready, and from outside where a subclass allows it."""

    kills_from_outside = False
    limits = SupervisorLimits(isolation_s=1e9)

    def __init__(self) -> None:
        super().__init__()
        self.world = World(self.limits)
        self.count = 0
        self.outside = 0  # deaths that no request is to blame for
        self.failed_starts = 0  # in a row

    @rule(length=st.integers(1, 80), fatal_at=st.one_of(st.just(NEVER), st.integers(0, 79)), prefill=st.integers(0, 3))
    def submit(self, length: int, fatal_at: int, prefill: int) -> None:
        self.count += 1
        self.world.prefill = prefill
        self.world.submit(make_entry(f"r{self.count}", self.count, length, fatal_at))

    @rule(count=st.integers(1, 12), length=st.integers(40, 80))
    def submit_many(self, count: int, length: int) -> None:
        for _ in range(count):
            self.submit(length, NEVER, 0)

    @precondition(lambda self: self.world.open())
    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        """The client leaves; perhaps another one takes the same id at once."""
        name = data.draw(st.sampled_from([reader.entry.request_id for reader in self.world.open()]))
        self.world.drop(name)
        if data.draw(st.booleans()):
            self.count += 1
            old = self.world.readers.pop(name)
            self.world.readers[f"{name}, before {self.count}"] = old
            self.world.submit(make_entry(name, self.count, 40))

    @precondition(lambda self: self.world.status is EngineStatus.READY)
    @rule(count=st.integers(1, 60), lost=st.booleans(), aborts=st.booleans())
    def step(self, count: int, lost: bool, aborts: bool) -> None:
        for _ in range(count):
            if self.world.status is EngineStatus.READY:
                if aborts:
                    self.world.abort_in_engine()
                self.world.step(lost)
        self._forgive()

    @precondition(lambda self: self.world.status is EngineStatus.BACKING_OFF)
    @rule()
    def restart(self) -> None:
        self.world.restart()

    @precondition(lambda self: self.world.status is EngineStatus.STARTING)
    @rule()
    def ready(self) -> None:
        self.world.ready()

    @precondition(lambda self: self.world.status is EngineStatus.STARTING and self.world.num_deaths)
    @rule()
    def spawn_fails(self) -> None:
        self.outside += 1
        self.world.follow(self.world.logic.spawn_failed())

    @precondition(lambda self: self.world.status is EngineStatus.STARTING and self._may_fail_to_start())
    @rule()
    def die_before_ready(self) -> None:
        self.outside += 1
        self.failed_starts += 1
        self.world.die()

    @precondition(lambda self: self.kills_from_outside and self.world.status is EngineStatus.READY)
    @rule()
    def kill(self) -> None:
        self.outside += 1
        self.world.die()
        self._forgive()

    @rule(seconds=st.floats(0, 30))
    def time_passes(self, seconds: float) -> None:
        self.world.now += seconds
        self.world.hand_over()

    @invariant()
    def tokens_are_those_of_a_solo_run(self) -> None:
        for reader in self.world.readers.values():
            expected = all_tokens(reader.entry.request)
            assert reader.tokens == expected[: len(reader.tokens)], "lost, or twice"
            for reason, why in reader.ends:
                assert reason is not FinishReason.LENGTH or reader.tokens == expected
                assert reason is not FinishReason.ERROR or f"died {reader.entry.deaths} times" in str(why)
            assert len(reader.ends) <= 1

    @invariant()
    def the_journal_holds_what_is_open(self) -> None:
        names = [reader.entry.request_id for reader in self.world.open()]
        assert sorted(entry.request_id for entry in self.world.logic.journal) == sorted(names)

    @invariant()
    def the_engine_has_what_the_journal_says(self) -> None:
        if self.world.status is EngineStatus.READY:
            inside = {entry.request_id for entry in self.world.logic.journal if entry.in_engine}
            assert inside <= set(self.world.engine.inside)

    def teardown(self) -> None:
        self.world.run_dry()
        self.tokens_are_those_of_a_solo_run()
        self.check_end()

    def check_end(self) -> None:
        poisons = [reader for reader in self.world.readers.values() if reader.is_poison]
        assert self.world.status is not EngineStatus.GIVEN_UP, "poisons alone do not end a server"
        assert self.world.num_deaths <= MAX_DEATHS * len(poisons) + self.outside
        for reader in self.world.readers.values():
            (end,) = reader.ends
            if end[0] is FinishReason.ERROR:
                assert reader.is_poison and reader.entry.deaths >= 3
            assert not (reader.is_poison and end[0] is FinishReason.LENGTH)

    def _may_fail_to_start(self) -> bool:
        return bool(self.world.num_deaths) and self.failed_starts < self.limits.max_failed_starts - 1

    def _forgive(self) -> None:
        if any(reader.tokens for reader in self.world.readers.values()):
            self.failed_starts = self.world.logic._failed_starts


class KilledFromOutsideMachine(SupervisorMachine):
    """A harmless request may fail when engines are killed while it is retried, and engines may be given up."""

    kills_from_outside = True
    limits = SupervisorLimits(isolation_s=10.0)

    def check_end(self) -> None:
        for reader in self.world.readers.values():
            assert self.world.logic.is_over or len(reader.ends) == 1
            if reader.ends and reader.ends[0][0] is FinishReason.ERROR:
                assert reader.entry.deaths >= 3


SETTINGS = examples(20, 150, stateful_step_count=30)
TestPoison = SupervisorMachine.TestCase
TestPoison.settings = SETTINGS
TestKilled = KilledFromOutsideMachine.TestCase
TestKilled.settings = SETTINGS


def ready_world(**limits: Any) -> World:
    world = World(SupervisorLimits(**limits))
    world.ready()
    return world


def killed_after(world: World, steps: int) -> None:
    for _ in range(steps):
        world.step()
    world.die()
    world.restart()
    world.ready()


@pytest.mark.parametrize("position", [0, 1, 20, 21])
def test_the_poison_fails_and_twenty_bystanders_finish(position: int) -> None:
    """Wherever it stands among them, it takes at most five deaths."""
    world = ready_world()
    for number in range(21):
        world.submit(make_entry(f"r{number}", number, 60, 7 if number == position else NEVER))
    world.run_dry()
    ends = {name: reader.ends[0][0] for name, reader in world.readers.items()}
    assert {name for name, reason in ends.items() if reason is FinishReason.ERROR} == ({f"r{position}"} & set(ends))
    assert world.num_deaths <= 5


def test_one_or_two_deaths_in_a_row_fail_no_request() -> None:
    world = ready_world()
    world.submit(make_entry("alone", 1, 60))
    for _ in range(2):
        killed_after(world, 1)
    world.run_dry()
    assert world.readers["alone"].ends == [(FinishReason.LENGTH, None)]


def test_progress_ends_a_quarantine() -> None:
    """Kills from outside, again and again, do not add up for a stream that goes on in between."""
    world = ready_world()
    world.submit(make_entry("long", 1, 1000))
    for _ in range(20):
        killed_after(world, 40)
    world.run_dry()
    assert world.readers["long"].ends == [(FinishReason.LENGTH, None)]


def test_a_few_tokens_end_no_quarantine() -> None:
    """Three deaths, each a little further on, in engines that had nothing else."""
    world = ready_world()
    world.submit(make_entry("slow", 1, 1000))
    for steps in (50, 5, 5):
        killed_after(world, steps)
    why = "the engine died 3 times while this request was in it; it is not tried again"
    assert world.readers["slow"].ends == [(FinishReason.ERROR, Failure(FailureCode.ENGINE_DIED, why))]


def test_a_poison_whose_client_has_left_fails_no_other_request() -> None:
    """The engine may die of a request that the front no longer knows."""
    world = ready_world()
    world.submit(make_entry("bystander", 1, 60))
    for _ in range(2):
        killed_after(world, 1)
    assert "bystander" in world.engine.inside  # retried
    world.submit(make_entry("poison", 2, 60, fatal_at=0))
    world.drop("poison")
    world.step()
    assert world.num_deaths == 3 and not world.readers["bystander"].ends
    world.run_dry()
    assert world.readers["bystander"].ends == [(FinishReason.LENGTH, None)]


def test_newcomers_wait_for_an_isolated_request_and_not_for_ever() -> None:
    world = ready_world(isolation_s=10.0)
    world.prefill = 10_000
    world.submit(make_entry("slow", 1, 60))
    for _ in range(3):
        world.submit(make_entry(f"beside {world.num_deaths}", 2, 60))
        world.die()
        world.restart()
        world.ready()
    world.submit(make_entry("newcomer", 3, 60))
    world.step()  # the probe's
    assert set(world.engine.inside) == {"slow"}
    world.now += 11.0
    world.hand_over()
    assert "newcomer" in world.engine.inside


def test_many_quarantined_requests_are_not_retried_one_by_one_for_ever() -> None:
    """Each one cleared lets one more be tried at once."""
    world = ready_world()
    for number in range(300):
        world.submit(make_entry(f"r{number}", number, 200))
    for _ in range(2):
        world.die()
        world.restart()
        world.ready()
    assert len(world.engine.inside) == 1
    steps = 0
    while any(not entry.in_engine for entry in world.logic.journal):
        world.step()
        steps += 1
    assert steps < 400  # 300 one after the other would take 300 * 32


def test_an_engine_that_dies_of_everything_is_given_up() -> None:
    """It fails at its probe: then it is not the requests' fault, and they do not fail one after the other."""
    world = ready_world()
    for number in range(10):
        world.submit(make_entry(f"r{number}", number, 60))
    while not world.logic.is_over:
        if world.status is EngineStatus.READY:
            world.die()
        elif world.status is EngineStatus.BACKING_OFF:
            world.restart()
        else:
            world.ready()
    assert world.num_deaths <= 8 and world.logic.journal.num_failed <= 1


def test_poisons_alone_do_not_make_a_server_give_up() -> None:
    world = ready_world()
    for number in range(30):
        world.submit(make_entry(f"r{number}", number, 60, fatal_at=0))
    world.run_dry()
    assert world.status is not EngineStatus.GIVEN_UP
    assert all(reader.ends[0][0] is FinishReason.ERROR for reader in world.readers.values())


def test_an_idle_engine_that_was_proven_may_die_at_any_time() -> None:
    world = ready_world()
    for _ in range(10):
        world.now += 100.0
        world.die()
        world.restart()
        world.ready()
    assert world.status is EngineStatus.READY


def test_stop_is_possible_in_every_state() -> None:
    def stopped(world: World) -> EngineStatus:
        world.logic.stop()
        assert world.status is EngineStatus.DRAINING
        world.logic.stopped()
        return world.status

    starting, ready, backing_off = World(SupervisorLimits()), ready_world(), ready_world()
    backing_off.die()
    assert {stopped(world) for world in (starting, ready, backing_off)} == {EngineStatus.STOPPED}

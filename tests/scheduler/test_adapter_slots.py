"""Requests with adapters and few slots: who runs, who waits, and that a slot is what its rows take it for."""

from __future__ import annotations

import random

import pytest

from cadence.core.adapter import ADAPTERS, NO_ADAPTER_STATS, NO_SLOT, AdapterSpec
from cadence.core.contract.request import EngineRequest
from cadence.core.contract.step import NewRow, StepPlan
from cadence.core.errors import InvalidRequestError
from tests.helpers.toy_engine import ToyEngine, begun, check_tokens, make_engine
from tests.helpers.toy_model import make_request


def adapted(request_id: str, adapter: str, max_tokens: int = 4, length: int = 3) -> EngineRequest:
    specs = (AdapterSpec(adapter, f"/{adapter}", adapter),) if adapter else ()
    return make_request(request_id, list(range(length)), max_tokens, attachments=specs)


def put_by(plan: StepPlan) -> list[tuple[int, str]]:
    return plan.payloads.get(ADAPTERS, [])


def slot_of(new: NewRow) -> int:
    return new.payloads.get(ADAPTERS, NO_SLOT)


def test_who_waits_for_a_slot_holds_up_no_others_and_comes_next() -> None:
    engine = make_engine(adapter_slots=1, max_num_seqs=8)
    for request_id in ("A1", "B1", "-1", "A2", "B2"):
        engine.add(adapted(request_id, request_id[0].strip("-")))
    first = engine.step()
    assert begun(first) == ["A1", "-1", "A2"], "both were there when the slot was given to A"
    assert put_by(first) == [(0, "A")] and [slot_of(new) for new in first.begun] == [0, NO_SLOT, 0]
    assert engine.scheduler.stats().num_waiting == 2
    engine.add(adapted("A3", "A"))
    plans = [engine.step() for _ in range(16)]
    assert [(begun(plan), put_by(plan)) for plan in plans if plan.begun] == [
        (["B1", "B2"], [(0, "B")]),
        (["A3"], [(0, "A")]),
    ]
    check_tokens(engine)


def test_an_adapter_that_is_there_is_not_put_there_again() -> None:
    engine = make_engine(adapter_slots=2)
    for index, adapter in enumerate("ABABAC"):
        engine.add(adapted(str(index), adapter, max_tokens=2))
        plan = engine.step()
        assert put_by(plan) == {0: [(0, "A")], 1: [(1, "B")], 5: [(1, "C")]}.get(index, []), "the oldest use goes"
        engine.drain()


def test_a_pinned_adapter_keeps_its_slot() -> None:
    engine = make_engine(adapter_slots=2)
    engine.slots.pin("A")
    put = []
    for index, adapter in enumerate("ABCDABEA"):
        engine.add(adapted(str(index), adapter, max_tokens=2))
        put += put_by(engine.step())
        engine.drain()
    assert put == [(0, "A"), (1, "B"), (1, "C"), (1, "D"), (1, "B"), (1, "E")]
    engine.slots.unpin("A")
    for index, adapter in enumerate("FG", 100):
        engine.add(adapted(str(index), adapter, max_tokens=2))
    assert {slot for slot, _ in put_by(engine.step())} == {0, 1}
    engine.drain()


def test_the_last_slot_is_pinned_only_where_nobody_else_needs_it() -> None:
    engine = make_engine(adapter_slots=2)
    slots = engine.slots
    slots.pin("A")
    slots.pin("A")
    engine.add(adapted("1", "B"))
    with pytest.raises(InvalidRequestError, match=r"2 slots .* requests with other adapters need the last one"):
        slots.pin("C")
    engine.drain()
    slots.pin("C")
    assert slots.serves("A") and not slots.serves("B")
    with pytest.raises(InvalidRequestError, match=r"2 slots .* as many adapters are pinned"):
        slots.pin("B")


def test_pinning_lets_those_that_wait_go_on() -> None:
    """The slot that was kept for one who waits is pinned: another one is kept."""
    engine = make_engine(adapter_slots=2, max_num_seqs=8)
    for request_id in ("A1", "B1", "C1", "D1"):
        engine.add(adapted(request_id, request_id[0]))
    engine.step()
    engine.slots.pin("A")
    engine.drain()
    assert all(outcome.finish for outcome in engine.outcomes.values())


def test_a_slot_that_is_pinned_is_not_what_one_waits_for() -> None:
    """It never comes free: the other one does, though requests for what lies there come without end."""
    engine = make_engine(adapter_slots=2, max_num_seqs=8, num_blocks=200)
    engine.slots.pin("A")
    engine.add(adapted("A", "A"))
    for step in range(60):
        engine.add(adapted(f"B{step}", "B", max_tokens=3 + step % 4))
        if step == 5:
            engine.add(adapted("C", "C"))
        engine.step()
    assert engine.outcomes["C"].finish


def test_prefixes_are_shared_within_an_adapter_alone() -> None:
    """Whatever its name; and neither with another one nor with the model itself."""
    engine = make_engine(adapter_slots=2)
    hits = []
    for index, adapter in enumerate(["", "A", "B", "A", "", "B"]):
        specs = (AdapterSpec(f"name {index}", f"/{index}", adapter),) if adapter else ()
        engine.add(make_request(str(index), list(range(13)), 2, attachments=specs))
        engine.drain()
        hits.append(engine.scheduler.stats().prefix_hits)
    assert hits == [0, 0, 0, 12, 24, 36]


@pytest.mark.parametrize("slots", [1, 2, 3])
def test_nobody_is_starved(slots: int) -> None:
    """While requests of some adapters come without end, others get their turn."""
    engine = make_engine(adapter_slots=slots, max_num_seqs=4, num_blocks=200)
    waiting = [f"late{index}" for index in range(3)]
    for step in range(120):
        busy = chr(ord("A") + step % slots)
        engine.add(adapted(f"{busy}{step}", busy, max_tokens=3 + step % 4))
        if step == 5:
            for name in waiting:
                engine.add(adapted(name, name))
        engine.step()
    assert all(engine.outcomes[name].finish for name in waiting)


def test_requests_that_wait_for_a_slot_can_be_aborted() -> None:
    engine = make_engine(adapter_slots=1)
    for request_id in ("A1", "B1", "B2", "C1"):
        engine.add(adapted(request_id, request_id[0]))
    engine.step()
    engine.abort(["B1", "C1"])
    assert engine.slots.in_use == {"A", "B"}
    assert [request.request_id for request in engine.scheduler.snapshot(False).waiting] == ["B2"]
    engine.drain()
    assert len(engine.outcomes["B2"].tokens) == 4 and not engine.slots.in_use


def test_stats_name_the_adapters_of_requests() -> None:
    """Those still being prepared count as waiting. An adapter may run and wait; two names of one are two."""
    engine = make_engine(adapter_slots=1, max_num_seqs=2)
    for request_id in ("A1", "A2", "-1", "A3", "B1"):
        engine.add(adapted(request_id, request_id[0].strip("-")))
    engine.step()
    preparing = [make_request(name, [5], attachments=(AdapterSpec(name, "/x"),)) for name in ("D", "C")]
    stats = engine.scheduler.stats([*preparing, make_request("plain", [5])])
    assert stats.adapters.running == ("A",) and stats.adapters.waiting == ("A", "B", "C", "D")
    engine.drain()
    assert engine.scheduler.stats().adapters.running == engine.scheduler.stats().adapters.waiting == ()


def test_an_engine_without_slots_takes_no_adapters_and_looks_for_none() -> None:
    assert make_engine().scheduler.stats().adapters is NO_ADAPTER_STATS
    with pytest.raises(InvalidRequestError, match="enable_lora"):
        make_engine().add(adapted("a", "A"))


class SlotWatch:
    """What lies in the slots as plans are carried out, one after another."""

    def __init__(self, engine: ToyEngine) -> None:
        self._engine = engine
        self._contents: dict[int, str] = {}  # by slot
        self._slots: dict[int, int] = {}  # by row

    def follow(self, plan: StepPlan) -> None:
        """The newest, which is in flight."""
        earlier = {row for flight in self._engine.in_flight if flight.plan is not plan for row in flight.rows}
        for slot, digest in put_by(plan):
            assert slot not in {self._slots[row] for row in earlier}, "a step in flight computes with what lies there"
            self._contents[slot] = digest
        for new in plan.begun:
            self._slots[new.row] = slot_of(new)
        for row in plan.rows_np.tolist():
            request = self._engine.scheduler._rows.requests[row].request
            spec = request.attached(AdapterSpec)
            wanted = None if spec is None else spec.digest
            assert self._contents.get(self._slots[row]) == wanted


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("seed", range(8))
def test_a_slot_holds_what_its_rows_need(depth: int, seed: int) -> None:
    """Random requests, bursts, aborts, and a pool so small that some are preempted."""
    rng = random.Random(seed)
    slots = rng.randint(1, 3)
    engine = make_engine(
        num_blocks=rng.choice((16, 60)), adapter_slots=slots, steps_in_flight=depth, burst_steps=rng.choice((1, 4))
    )
    watch = SlotWatch(engine)
    for step in range(150):
        if rng.random() < 0.5:
            adapter = rng.choice(("", "A", "B", "C", "D", "E"))
            engine.add(adapted(str(step), adapter, rng.randint(1, 12), rng.randint(1, 14)))
        if rng.random() < 0.05:
            engine.abort([rng.choice(list(engine.outcomes))] if engine.outcomes else [])
        launched = not engine.is_full and len((plan := engine.launch()).rows_np) > 0
        if launched:
            watch.follow(plan)
        if engine.in_flight and (engine.is_full or not launched):
            engine.settle()
    engine.drain()
    assert all(outcome.finish for outcome in engine.outcomes.values())
    assert not engine.slots.in_use

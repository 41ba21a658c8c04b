"""An engine that several fronts share, from its end: channels that come and go, ids that are told apart; and what
fronts have counted, as one."""

from __future__ import annotations

import socket

import pytest

from cadence.core.contract.codec import answer_of, answer_to, call_of, decode_from_engine, encode
from cadence.core.contract.control import STATE
from cadence.core.contract.engine_state import EngineState, RequestView
from cadence.core.contract.front_messages import FrontCounts
from cadence.core.contract.messages import EngineInfo, FromEngine, ToEngine
from cadence.core.contract.request import EngineRequest, FinishReason, StopRule
from cadence.core.contract.update import RequestUpdate, TokenUpdates
from cadence.core.sampling_params import SamplingParams
from cadence.engine.fronts import OWNER, ManyFronts
from cadence.engine.metrics.metric import Counter, Gauge, Histogram
from cadence.engine.metrics.summed import plain_metrics, summed, with_others
from cadence.engine.supervise.journal import Journal
from cadence.process.channel import Channel
from tests.helpers.fake_engine import make_entry

INFO = EngineInfo(10, 100, 50, "toy", "cpu", 1, False, False)


class World:
    """The engine's end, and everybody's on the other side."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        self.owner = Channel(theirs)
        self.fronts = ManyFronts(Channel(ours))
        self.fronts.ready(INFO)
        assert self.heard(self.owner)[0].ready == INFO

    def introduce(self, number: int) -> Channel:
        mine, engines = socket.socketpair()
        self.owner.send(encode(ToEngine(front=number)), engines.detach())
        assert self.fronts.receive(0.1)[-1] == (OWNER, ToEngine(front=number))
        channel = Channel(mine)
        assert self.heard(channel)[0].ready == INFO
        return channel

    def add(self, front: int, name: str) -> str:
        stop = StopRule(frozenset(), frozenset(), 0, 4)
        request = EngineRequest(name, [1], SamplingParams(), stop, 0, 0.0)
        return self.fronts.taken(front, request).request_id

    @staticmethod
    def heard(channel: Channel) -> list[FromEngine]:
        return [decode_from_engine(message) for message in channel.receive(0.1)]


def token(core_id: str, value: int, reason: FinishReason | None = None) -> RequestUpdate:
    return RequestUpdate(core_id, [value], (), (), reason, None, 0, 0, 0.0)


def test_two_fronts_may_use_the_same_id() -> None:
    world = World()
    channels = [world.introduce(1), world.introduce(2)]
    ids = [world.add(1, "x"), world.add(2, "x")]
    assert len(set(ids)) == 2
    world.fronts.send_updates([token(ids[0], 7), token(ids[1], 8, FinishReason.STOP)], TokenUpdates())
    found = [world.heard(channel)[0].updates for channel in channels]
    assert [[(one.request_id, one.new_token_ids) for one in each] for each in found] == [[("x", [7])], [("x", [8])]]
    state = EngineState(running=[RequestView(ids[0], 1, 1, 1, 0)])
    for number, shown in ((1, "x"), (2, ids[0])):
        answer = answer_to(call_of(STATE, True, call_id=1), world.fronts.shown(number, state))
        world.fronts.send(number, FromEngine(answer=answer))
        (heard,) = world.heard(channels[number - 1])
        assert heard.answer == answer and answer_of(STATE, answer).running[0].request_id == shown


def numbered(core_id: str, number: int, reason: FinishReason | None = None) -> RequestUpdate:
    update = token(core_id, 5, reason)
    update.number = number
    return update


def test_tokens_by_number_go_to_the_front_whose_request_it_is() -> None:
    world = World()
    channels = [world.introduce(1), world.introduce(2)]
    mine, theirs, late = world.add(1, "a"), world.add(2, "b"), world.add(2, "c")
    world.fronts.send_updates([numbered(mine, 11), numbered(theirs, 12), numbered(late, 13)], TokenUpdates())
    assert [[one.number for one in world.heard(channel)[0].updates] for channel in channels] == [[11], [12, 13]]
    tokens = TokenUpdates([12, 11, 13], [7, 8, 9, 10], [2, 1, 1])
    world.fronts.send_updates([numbered(mine, 11, FinishReason.STOP)], tokens)
    (one,), (other,) = (world.heard(channel) for channel in channels)
    assert list(one.tokens.each()) == [(11, [9])] and [update.request_id for update in one.updates] == ["a"]
    assert list(other.tokens.each()) == [(12, [7, 8]), (13, [10])] and not other.updates
    channels[1].close(0.0)
    assert (2, ToEngine(abort=["b", "c"])) in world.fronts.receive(0.1)
    world.fronts.send_updates([], TokenUpdates([12, 13], [1, 2]))  # in the step that was under way
    ends = [numbered(theirs, 12, FinishReason.ABORT), numbered(late, 13, FinishReason.ABORT)]
    world.fronts.send_updates(ends, TokenUpdates())
    assert not world.heard(channels[0]) and not world.fronts._numbered


@pytest.mark.parametrize("leaves", ["dies", "says so", "is replaced"])
def test_the_requests_of_a_front_that_leaves_are_aborted(leaves: str) -> None:
    world = World()
    gone, other = world.introduce(1), world.introduce(2)
    mine, theirs = world.add(1, "mine"), world.add(2, "theirs")
    if leaves == "dies":
        gone.close(0.0)
    elif leaves == "says so":
        gone.send(encode(ToEngine(stop=True)))
    else:
        end, engines = socket.socketpair()
        world.owner.send(encode(ToEngine(front=1)), engines.detach())
        gone = Channel(end)
    commands = world.fronts.receive(0.1)
    assert (1, ToEngine(abort=["mine"])) in commands and not any(each.stop for _, each in commands)
    world.fronts.send_updates([token(mine, 1, FinishReason.ABORT), token(theirs, 2)], TokenUpdates())
    assert [one.request_id for one in world.heard(other)[0].updates] == ["theirs"]
    if leaves == "is replaced":
        assert [message.ready for message in world.heard(gone)] == [INFO]


def test_the_engine_ends_with_its_owner_and_by_its_word() -> None:
    world = World()
    world.owner.send(encode(ToEngine(stop=True)))
    assert world.fronts.receive(0.1) == [(OWNER, ToEngine(stop=True))]
    world.owner.close(0.0)
    with pytest.raises(EOFError):
        world.fronts.receive(0.1)


def test_heartbeats_reach_all_and_a_front_that_is_gone_stops_nobody() -> None:
    world = World()
    gone, other = world.introduce(1), world.introduce(2)
    gone.close(0.0)
    world.fronts.beat(encode(FromEngine(fatal="beat")))
    assert [message.fatal for message in (*world.heard(other), *world.heard(world.owner))] == ["beat", "beat"]


def test_quarantined_requests_wait_for_their_fronts_turn() -> None:
    journal = Journal(10.0)
    journal.add(make_entry("a", 1, 100))
    for _ in range(2):
        assert [entry.request_id for entry in journal.take_due(0.0, 10)] == ["a"]
        journal.engine_died()
    journal.add(make_entry("b", 2, 100))
    journal.hold_quarantined(5.0)
    assert [entry.request_id for entry in journal.take_due(1.0, 10)] == ["b"]
    assert [entry.request_id for entry in journal.take_due(6.0, 10)] == ["a"]


def test_what_a_journal_gives_away_it_has_no_more() -> None:
    journal = Journal(10.0)
    for name in "abc":
        journal.add(make_entry(name, 1, 100))
    journal.take_due(0.0, 2)
    assert [entry.request_id for entry in journal.release(everything=False)] == ["c"]
    assert not journal.release(everything=True) and len(journal) == 2  # the others are in the engine
    journal.engine_died()
    journal.take_due(0.0, 2)
    journal.engine_died()
    assert not journal.release(everything=False)  # both are quarantined
    assert {entry.request_id for entry in journal.release(everything=True)} == {"a", "b"} and not len(journal)


def test_counts_of_fronts_are_summed_and_those_of_engines_are_not() -> None:
    latency = Histogram("vllm:e2e_request_latency_seconds", {"engine": "0"}, (1.0, 2.0))
    latency.observe(1.5)
    own = [
        Counter("vllm:generation_tokens", {"engine": "0"}, 5),
        Counter("vllm:generation_tokens", {"engine": "1"}, 6),
        Counter("vllm:prefix_cache_hits", {"engine": "0"}, 7),
        Gauge("vllm:num_requests_running", {"engine": "0"}, 3),
        latency,
    ]
    each = FrontCounts(plain_metrics(own), {"http_requests_accepted": 2})
    three = summed([each, each, each])
    assert three.server == {"http_requests_accepted": 6}
    tokens, more, hits, running, seconds = with_others(own, three)
    assert isinstance(tokens, Counter) and isinstance(more, Counter) and isinstance(hits, Counter)
    assert (tokens.value, more.value, hits.value) == (20, 24, 7) and running is own[3]
    assert isinstance(seconds, Histogram) and (seconds.count, seconds.sum) == (4, 6.0)
    assert seconds.buckets == {"1.0": 0, "2.0": 4, "+Inf": 4}
    assert latency.count == 1 and with_others(own, FrontCounts()) == own

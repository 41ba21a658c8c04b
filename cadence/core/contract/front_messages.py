"""What crosses between the fronts of a server with several and the process that made them."""

from __future__ import annotations

from dataclasses import dataclass, field

from cadence.core.contract.adapter_messages import AdapterTable, TableCall, TableReply
from cadence.core.contract.control_messages import ControlAnswer, ControlCall
from cadence.core.contract.hold import Hold
from cadence.core.contract.response_messages import ResumedResponse, StoreCall, StoreReply

# A counter or a histogram: name, labels, value or counts by bucket, and the sum of what was observed.
PlainMetric = tuple[str, dict[str, str], list[int], float]


@dataclass(frozen=True, slots=True)
class FrontCounts:
    """What a front has counted since it began."""

    metrics: list[PlainMetric] = field(default_factory=list)
    server: dict[str, int] = field(default_factory=dict)  # the server's own counters, by name


NOTHING_COUNTED = FrontCounts()


@dataclass(frozen=True, slots=True)
class ToFront:
    options: bytes = b""  # JSON: the first message
    connection: bool = False  # a client's, to be served, comes with the message
    engine: int = -1  # a channel to this engine comes with the message, unless one of the next two is said; -1 = none
    given_up: str = ""  # why there will be no such engine any more
    lacks_ranks: str = ""  # which ranks did not come: the engine waits for them again, requests do not
    is_turn: bool = True  # whether quarantined requests may be retried there at once
    num_restarts: int = 0  # of this engine so far
    send_counts: bool = False  # its counts are wanted now
    call_id: int = 0  # the question answered here; 0 = none
    others: FrontCounts | None = None  # the answer: the sums of all other fronts, also of those that are gone
    reply: StoreReply | None = None  # the answer to a call
    table: AdapterTable | None = None  # what is served from now on
    table_reply: TableReply | None = None  # the answer to a change of the table
    answer: ControlAnswer | None = None  # to a verb of the owner
    hold: Hold | None = None  # from now on
    cancel: str = ""  # the id of a response that runs there and shall end
    resumed: ResumedResponse | None = None  # to go on with
    unfinished: bytes = b""  # an answer to go on with, whose connection comes with the message


@dataclass(frozen=True, slots=True)
class FromFront:
    serving: bool = False  # it takes connections
    counts: FrontCounts | None = None  # sent every second, and when they are asked for
    call_id: int = 0  # asks for the counts of the others, or makes a call
    call: StoreCall | None = None  # without a call_id, no one waits for the reply
    table_call: TableCall | None = None
    table_version: int = 0  # of the table that it has taken in
    control: ControlCall | None = None  # a verb of the owner
    hold_version: int = 0  # of the last hold that it has taken in
    quiet_version: int = 0  # of a hold: what had to end by it has ended
    unfinished: bytes = b""  # an answer that another has to go on with: its connection comes with the message

"""What crosses between processes that answer `/v1/responses` and the one that keeps responses: calls and their replies,
and a response that another process goes on with."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """Body and items are JSON, so that what is kept is what was said and its size is known."""

    body: bytes  # the response
    items: bytes  # the whole conversation, for the response that comes after; b"" = it is not known
    num_input: int = 0  # items of the conversation that came before the response
    item_ids: tuple[str, ...] = ()  # of the items that have one
    events: tuple[bytes, ...] = ()  # of its stream, where they can be read again
    stored_at: float = 0.0  # seconds, on the store's clock

    @property
    def size(self) -> int:
        return len(self.body) + len(self.items) + sum(map(len, self.item_ids)) + sum(map(len, self.events))


@dataclass(frozen=True, slots=True)
class ResponseOrigin:
    """What is chosen once for a response, so that every process that continues it says the same."""

    id: str
    created_at: int  # seconds since 1970
    seed: int  # of its tokens, where it runs in the background and its request has none


@dataclass(frozen=True, slots=True)
class ResponseJob:
    """A request that any process can answer."""

    origin: ResponseOrigin
    body: bytes  # as it came
    conversation: bytes  # JSON: the items before those of the body
    referenced: dict[str, bytes]  # item id -> the conversation that has it
    headers: dict[str, str]  # those that say how it is answered


@dataclass(frozen=True, slots=True)
class ResumedResponse:
    """One whose process is gone."""

    tenant: str
    job: ResponseJob
    events: list[bytes]  # told so far
    token_ids: list[int]  # that these come of, at least
    left_s: float  # of its time
    is_cancelled: bool


class StoreVerb(StrEnum):
    BEGIN = "begin"  # a response runs in the process that says so
    ADD = "add"  # what it has said since; there is no reply
    END = "end"  # it is over, and kept where there is a `stored`
    FAIL = "fail"  # it is over, and `reason` says why
    GET = "get"  # the response as it is, less its events
    READ = "read"  # events from `start` on, once there are some
    FIND_ITEM = "find_item"  # a response whose conversation has an item; the id is the item's
    CANCEL = "cancel"
    DROP = "drop"


@dataclass(frozen=True, slots=True)
class StoreCall:
    verb: StoreVerb
    tenant: str
    response_id: str
    body: bytes = b""  # BEGIN, ADD: the response so far, as JSON; b"" = as before
    is_background: bool = False  # BEGIN
    keeps_events: bool = False  # BEGIN
    job: ResponseJob | None = None  # BEGIN, of one that another process may go on with
    events: list[bytes] = field(default_factory=list)  # ADD, END
    token_ids: list[int] = field(default_factory=list)  # ADD
    stored: StoredResponse | None = None  # END
    start: int = 0  # READ
    reason: str = ""  # FAIL


class ResponseState(StrEnum):
    UNKNOWN = "unknown"
    RUNNING = "running"
    STORED = "stored"
    TOO_MANY = "too_many"  # run in the background already


@dataclass(frozen=True, slots=True)
class StoreReply:
    state: ResponseState
    body: bytes = b""  # of one that runs
    stored: StoredResponse | None = None
    events: list[bytes] = field(default_factory=list)
    has_events: bool = False  # they can be read
    is_lost: bool = False  # there were too many events to keep
    is_over: bool = False  # READ: no more follow


UNKNOWN_RESPONSE = StoreReply(ResponseState.UNKNOWN)

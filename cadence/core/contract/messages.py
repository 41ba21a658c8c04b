"""What crosses the boundary between the front and the engine process. Plain data; `codec.py` writes it down."""

from __future__ import annotations

from dataclasses import dataclass, field

from cadence.core.contract.control_messages import ControlAnswer, ControlCall
from cadence.core.contract.request import FinishReason
from cadence.core.contract.update import RequestUpdate, TokenUpdates

LACKS_RANKS = "not all ranks have joined"  # so begins `fatal` of one that waited for them
BYSTANDER = "another engine, which shares experts with this one, is gone"  # `fatal` of one that ends for that alone


@dataclass(frozen=True, slots=True)
class AddRequest:
    """A request as bytes of its own: one that cannot be decoded fails alone, not with the message it came in."""

    request_id: str
    payload: bytes  # an EngineRequest, by `codec.encode_request`


@dataclass(slots=True)
class ToEngine:
    """Commands, applied in this order: add, abort, call."""

    add: list[AddRequest] = field(default_factory=list)
    abort: list[str] = field(default_factory=list)
    abort_reason: FinishReason = FinishReason.ABORT
    call: ControlCall | None = None
    front: int = 0  # a front of this number begins: the channel to it comes with this message; 0 = none does
    stop: bool = False  # leave at once


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """What only the engine process can know, and the front must."""

    num_blocks: int
    max_model_len: int
    vocab_size: int
    device_name: str
    kind: str  # cpu | cuda
    total_memory: int  # bytes
    native_bf16: bool
    native_fp16: bool
    count: int = 1  # devices


@dataclass(frozen=True, slots=True)
class Heartbeat:
    step_age: float  # seconds the step under way has taken so far; 0.0 = idle, or still starting
    num_steps: int  # since the start


@dataclass(slots=True)
class FromEngine:
    """At most one step's updates and one answer. Of a request, `tokens` come before what `updates` say of it."""

    ready: EngineInfo | None = None  # sent once, when requests can be taken
    tokens: TokenUpdates = field(default_factory=TokenUpdates)
    updates: list[RequestUpdate] = field(default_factory=list)
    answer: ControlAnswer | None = None
    heartbeat: Heartbeat | None = None
    fatal: str = ""  # the engine is about to exit because of this

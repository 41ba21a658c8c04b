"""What crosses the boundary between the front and the engine process. Plain data; `core/codec.py` writes it down."""

from __future__ import annotations

from dataclasses import dataclass, field

from cadence.core.engine_state import EngineState
from cadence.core.request import EngineRequest, FinishReason
from cadence.core.update import RequestUpdate


@dataclass(slots=True)
class ToEngine:
    """One parcel of orders, applied in this order: add, abort, calls."""

    add: list[EngineRequest] = field(default_factory=list)
    abort: list[str] = field(default_factory=list)
    abort_reason: FinishReason = FinishReason.ABORT
    call: str = ""  # "", "state" (with the map of blocks), "stats" (without) or "reset_prefix_cache"
    call_id: int = 0
    stop: bool = False  # leave at once


@dataclass(frozen=True, slots=True)
class Introduction:
    """What only the engine process can know, and the front must."""

    num_blocks: int
    max_model_len: int
    vocab_size: int
    device_name: str
    kind: str  # cpu | cuda
    total_memory: int  # bytes
    native_bf16: bool
    native_fp16: bool


@dataclass(slots=True)
class FromEngine:
    """One parcel of news: at most one step's updates and one answer."""

    introduction: Introduction | None = None  # sent once, first: the engine is ready
    updates: list[RequestUpdate] = field(default_factory=list)
    call_id: int = 0  # the call answered here; 0 = none
    state: EngineState | None = None
    done: bool = False
    fatal: str = ""  # the engine is about to exit because of this

"""What an `LLMEngine` asks of what computes its tokens: an `EngineCore`, or several in other processes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from cadence.core.engine_state import EngineStats
from cadence.core.request import EngineRequest, FinishReason
from cadence.core.update import AnyUpdate
from cadence.engine.intake import Order, Told


class AnyCore(Protocol):
    """As `EngineCore` has them."""

    def add(self, request: EngineRequest) -> None: ...

    def abort(self, request_ids: Iterable[str], reason: FinishReason = FinishReason.ABORT) -> None: ...

    def order(self, order: Order, told: Told) -> None: ...

    def prepare(self) -> None: ...

    def begin(self) -> None: ...

    def step(self) -> Sequence[AnyUpdate]: ...

    def take_ended(self) -> Sequence[AnyUpdate]: ...

    def has_unfinished(self) -> bool: ...

    def reset_prefix_cache(self, reset_running_requests: bool = False) -> bool: ...

    def stats_by_engine(self) -> list[EngineStats]: ...

    def close(self) -> None: ...

"""What an `LLMEngine` asks of what computes its tokens: an `EngineCore`, or several in other processes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from typing import Protocol

from cadence.core.contract.control import A, P, Verb
from cadence.core.contract.engine_state import EngineStats
from cadence.core.contract.request import EngineRequest, FinishReason
from cadence.core.contract.update import AnyUpdate


class AnyCore(Protocol):
    """As `EngineCore` has them."""

    def add(self, request: EngineRequest, engine: int | None = None) -> None:
        """engine: of several, the one that it is for; None = any"""
        ...

    def abort(self, request_ids: Iterable[str], reason: FinishReason = FinishReason.ABORT) -> None: ...

    def call(self, verb: Verb[P, A], payload: P) -> Future[A]: ...

    def prepare(self) -> None: ...

    def begin(self) -> None: ...

    def step(self) -> Sequence[AnyUpdate]: ...

    def take_ended(self) -> Sequence[AnyUpdate]: ...

    def has_unfinished(self) -> bool: ...

    def stats_by_engine(self) -> list[EngineStats]: ...

    def close(self) -> None: ...

"""How a rank reaches its engine, and says what it ends of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from cadence.process.messages import MessageReader, ResultWriter

Fail = Callable[[Exception], None]  # says what a thread ended of, and ends the process


@dataclass(frozen=True, slots=True)
class RankLink:
    rank: int
    commands: MessageReader
    results: ResultWriter
    linger_s: float = 0.0  # of a rank whose peer is gone: the engine should know of that one first

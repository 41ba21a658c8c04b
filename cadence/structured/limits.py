"""What the grammars of requests may take."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GrammarLimits:
    seconds: float = 10.0  # of CPU time, to compile one: a busy machine refuses no grammar that a quiet one compiles
    clock_seconds: float = 60.0  # of the clock, to compile one
    memory_bytes: int = 2**30  # to compile one
    compiled_bytes: int = 32 * 2**20  # of a compiled one, on its way to the engine
    step_seconds: float = 0.25  # of CPU time, to work out one mask
    median_seconds: float = 0.02  # of CPU time, for most masks
    max_waiting: int = 64  # grammars that wait to be compiled, with those that are
    at_once: int = 4  # compiled at the same time
    cache_bytes: int = 256 * 2**20  # of compiled grammars that are kept
    cache_count: int = 1024  # of them, failures included

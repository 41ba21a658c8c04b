"""Compiled grammars by digest, the least recently used ones forgotten first."""

from __future__ import annotations

import threading
from collections import OrderedDict

from cadence.structured.grammar import Grammar
from cadence.structured.limits import GrammarLimits

Outcome = Grammar | str  # what was compiled, or why it was not: a sentence after the name of the field


class GrammarCache:
    """Shared by two threads. A grammar larger than the whole cache is used and not kept."""

    def __init__(self, limits: GrammarLimits) -> None:
        self._limits = limits
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, Outcome] = OrderedDict()
        self._num_bytes = 0

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def num_bytes(self) -> int:
        return self._num_bytes

    def get(self, digest: str) -> Outcome | None:
        with self._lock:
            if digest in self._kept:
                self._kept.move_to_end(digest)
            return self._kept.get(digest)

    def put(self, digest: str, outcome: Outcome) -> None:
        with self._lock:
            self._forget(digest)
            self._kept[digest] = outcome
            self._num_bytes += _size(outcome)
            while len(self._kept) > self._limits.cache_count or self._num_bytes > self._limits.cache_bytes:
                self._forget(next(iter(self._kept)))

    def _forget(self, digest: str) -> None:
        if digest in self._kept:
            self._num_bytes -= _size(self._kept.pop(digest))


def _size(outcome: Outcome) -> int:
    return len(outcome) if isinstance(outcome, str) else outcome.num_bytes

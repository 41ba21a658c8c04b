"""What each tenant has asked for lately, in memory that all processes of a server share.

A limit of so many in a minute is a bucket that holds as many and fills at that rate: who was quiet may come with a
minute's worth at once. A request is let in while there is something in both buckets; tokens that were not known
beforehand are taken when they are, and may leave a bucket in debt, which is waited for.
"""

from __future__ import annotations

import fcntl
import math
import mmap
import os
import struct
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import astuple, dataclass, fields

from cadence.config.server.tenants import TenantSpec
from cadence.entrypoints.server.http.overload import Overload

_LINE = struct.Struct("=6d")  # of each tenant: the fields of `_Line`
_MOST_WAIT_S = 3600
_LEAST_PLACES = 0.5  # of those for requests, that any tenant may have: the others' places are few, and free soon


@dataclass(slots=True)
class _Line:
    """Buckets begin full: what was taken out of them is kept."""

    requests: float  # taken out
    tokens: float  # taken out
    seconds: float  # time.monotonic() of these two, which is one clock for all processes of a machine
    accepted: float  # requests since the start
    refused: float
    total_tokens: float

    @classmethod
    def read(cls, memory: mmap.mmap, at: int) -> _Line:
        values = _LINE.unpack_from(memory, at)
        return cls(**dict(zip((field.name for field in fields(cls)), values, strict=True)))

    def write(self, memory: mmap.mmap, at: int) -> None:
        _LINE.pack_into(memory, at, *astuple(self))


@dataclass(frozen=True, slots=True)
class TenantCounts:
    requests_accepted: int
    requests_refused: int
    tokens: int


class NullLedger:
    """Of a server without named tenants: none has limits."""

    def opened_by(self) -> str:
        """A path by which processes of the same user open it, as long as this one lives; "" = there is none."""
        return ""

    def most_places(self, tenant: str) -> float:
        """Of all places for requests, what one tenant may have, 0 to 1."""
        return 1.0

    def enter(self, tenant: str, tokens: int) -> Overload | None:
        """A request with so many tokens comes -> None: it is let in"""
        return None

    def add_tokens(self, tenant: str, tokens: int) -> None:
        """Of a request that was let in, and has them now."""

    def counts(self) -> dict[str, TenantCounts]:
        """Since the start, in all processes."""
        return {}


class TenantLedger(NullLedger):
    def __init__(self, specs: Sequence[TenantSpec], path: str = "") -> None:
        """path: of a ledger that another process has made; "" makes one"""
        self._specs = {spec.name: (number, spec) for number, spec in enumerate(specs)}
        self._file = os.open(path, os.O_RDWR | os.O_CLOEXEC) if path else os.memfd_create("tenants", os.MFD_CLOEXEC)
        size = max(_LINE.size * len(specs), 1)
        os.ftruncate(self._file, size)
        self._memory = mmap.mmap(self._file, size)

    def opened_by(self) -> str:
        return f"/proc/{os.getpid()}/fd/{self._file}"

    def most_places(self, tenant: str) -> float:
        if tenant not in self._specs or len(self._specs) == 1:
            return 1.0
        weights = {name: spec.weight for name, (_, spec) in self._specs.items()}
        return max(weights[tenant] / sum(weights.values()), _LEAST_PLACES)

    def enter(self, tenant: str, tokens: int) -> Overload | None:
        if tenant not in self._specs:
            return None
        number, spec = self._specs[tenant]
        with self._line(number, spec) as line:
            used = [
                (line.requests, spec.requests_per_minute, "requests"),
                (line.tokens, spec.tokens_per_minute, "tokens"),
            ]
            waits = [(60 * (taken + 1 - most) / most, f"{most} {what}") for taken, most, what in used if most]
            seconds, limit = max(waits, default=(0.0, ""))
            if seconds > 0:
                line.refused += 1
                retry_after = min(max(math.ceil(seconds), 1), _MOST_WAIT_S)
                return Overload(f"This key is at its limit of {limit} a minute; try again later.", retry_after)
            line.requests += 1
            line.tokens += tokens
            line.accepted += 1
            line.total_tokens += tokens
            return None

    def add_tokens(self, tenant: str, tokens: int) -> None:
        if tenant in self._specs:
            with self._line(*self._specs[tenant]) as line:
                line.tokens += tokens
                line.total_tokens += tokens

    def counts(self) -> dict[str, TenantCounts]:
        found = {}
        for name, (number, _) in self._specs.items():
            line = _Line.read(self._memory, number * _LINE.size)
            found[name] = TenantCounts(int(line.accepted), int(line.refused), int(line.total_tokens))
        return found

    @contextmanager
    def _line(self, number: int, spec: TenantSpec) -> Iterator[_Line]:
        """As it is now; what is written to it is kept. Other processes wait meanwhile."""
        at = number * _LINE.size
        fcntl.lockf(self._file, fcntl.LOCK_EX, _LINE.size, at)
        line = _Line.read(self._memory, at)
        try:
            now = time.monotonic()
            passed = max(now - line.seconds, 0.0) / 60
            line.requests = max(line.requests - passed * spec.requests_per_minute, 0.0)
            line.tokens = max(line.tokens - passed * spec.tokens_per_minute, 0.0)
            line.seconds = now
            yield line
        finally:
            line.write(self._memory, at)
            fcntl.lockf(self._file, fcntl.LOCK_UN, _LINE.size, at)


NO_TENANTS = NullLedger()


def open_ledger(specs: Sequence[TenantSpec], path: str) -> NullLedger:
    """path: as `TenantLedger` has it"""
    return TenantLedger(specs, path) if specs else NO_TENANTS

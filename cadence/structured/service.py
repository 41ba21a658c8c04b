"""Grammars for the requests of an engine, which never waits: asked for by spec, compiled elsewhere, kept by content."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from cadence.core.errors import CadenceError
from cadence.core.failure import Failure, FailureCode
from cadence.core.grammar import GrammarSpec
from cadence.structured.cache import GrammarCache, Outcome
from cadence.structured.canonical import Encode
from cadence.structured.compile_client import CompileClient
from cadence.structured.compile_jobs import CompileRefused, CompileResult
from cadence.structured.compiler import Backends, RefusedGrammarError
from cadence.structured.grammar import Grammar
from cadence.structured.limits import GrammarLimits
from cadence.structured.vocabulary import Vocabulary

_BUSY = "cannot be compiled at the moment: too many others wait; try again a little later"
_DIED = "cannot be compiled at the moment: the process that does it ended"
_LATE = "cannot be compiled at the moment: the machine is too busy; try again a little later"
_AGAIN = (_BUSY, _DIED, _LATE)  # they say nothing of the grammar


@dataclass(slots=True)
class _Compilation:
    """One grammar on its way. Written once, by the service's thread."""

    spec: GrammarSpec
    digest: str
    outcome: Outcome | None = None
    tenant: str = ""  # who asked first


class GrammarTicket:
    """What one request waits for."""

    def __init__(self, source: str, work: _Compilation) -> None:
        self._source = source
        self._work = work

    @property
    def outcome(self) -> Grammar | Failure | None:
        """None while it is compiled."""
        found = self._work.outcome
        if not isinstance(found, str):
            return found
        return Failure(FailureCode.BUSY if found in _AGAIN else FailureCode.BAD_GRAMMAR, f"{self._source} {found}")


class GrammarService:
    """`load` gives the vocabulary and a function from text to tokens; it is called in another thread, once, when first
    needed. `on_ready` is called in that thread whenever an outcome is there."""

    def __init__(
        self,
        load: Callable[[], tuple[Vocabulary, Encode]],
        limits: GrammarLimits = GrammarLimits(),  # noqa: B008 (frozen)
        on_ready: Callable[[], None] = lambda: None,
    ) -> None:
        self._load = load
        self._limits = limits
        self._on_ready = on_ready
        self._cache = GrammarCache(limits)
        self._lock = threading.Lock()
        self._pending: dict[str, _Compilation] = {}
        self._numbers: dict[int, _Compilation] = {}
        self._last = 0
        self._client = CompileClient(self._prepare, self._receive, limits)
        self._backends: Backends | None = None

    def start(self) -> None:
        """Gets ready before the first request. Does not wait either."""
        self._client.start()

    def request(self, spec: GrammarSpec, tenant: str = "") -> GrammarTicket:
        """Never waits: the ticket has its outcome now or later."""
        digest = spec.digest
        known = self._cache.get(digest)
        if known is not None:
            return GrammarTicket(spec.source, _Compilation(spec, digest, known))
        with self._lock:
            work = self._pending.get(digest)
            if work is None:
                if not self._has_room(tenant):
                    return GrammarTicket(spec.source, _Compilation(spec, digest, _BUSY))
                work = self._pending[digest] = _Compilation(spec, digest, tenant=tenant)
                self._last += 1
                self._numbers[self._last] = work
                self._client.send(self._last, spec, tenant)
        return GrammarTicket(spec.source, work)

    def _has_room(self, tenant: str) -> bool:
        """Where all places are taken, a tenant that has less than its share still gets one."""
        tenants = [work.tenant for work in self._pending.values()]
        share = self._limits.max_waiting // len({*tenants, tenant})
        return len(tenants) < self._limits.max_waiting or tenants.count(tenant) < share

    def close(self) -> None:
        self._client.close()

    # In the client's thread

    def _prepare(self) -> Vocabulary:
        if self._backends is None:
            vocabulary, encode = self._load()
            self._backends = Backends(vocabulary, encode)
            self._backends.prepare()
        return self._backends.vocabulary

    def _receive(self, number: int, answer: CompileResult | CompileRefused | None) -> None:
        """None: the process died with this job in it, twice, or does not start."""
        with self._lock:
            work = self._numbers.pop(number)
        outcome = _DIED if answer is None else self._read(work, answer)
        if outcome not in _AGAIN:
            self._cache.put(work.digest, outcome)
        with self._lock:
            work.outcome = outcome
            del self._pending[work.digest]
        self._on_ready()

    def _read(self, work: _Compilation, answer: CompileResult | CompileRefused) -> Outcome:
        if isinstance(answer, CompileRefused):
            return _LATE if answer.again else answer.message
        assert self._backends is not None
        try:
            return self._backends.read(work.spec, answer.backend, answer.data)
        except (CadenceError, RefusedGrammarError, ValueError, RuntimeError) as error:
            return f"cannot be read back: {error}"

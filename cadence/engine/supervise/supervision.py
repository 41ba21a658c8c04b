"""What a supervisor decides: states, restarts, back-off, giving up, and with the journal who goes on. Pure: it is told
what happened and when, and says what to do; `supervisor.py` does it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from cadence.core.contract.codec import encode_request
from cadence.core.contract.request import EngineRequest, FinishReason, StopRule
from cadence.core.contract.update import RequestTokens, RequestUpdate, TokenUpdates
from cadence.core.failure import Failure, FailureCode
from cadence.core.sampling_params import SamplingParams
from cadence.engine.supervise.journal import Journal, JournalEntry
from cadence.engine.supervise.lifecycle import EngineStatus, Lifecycle
from cadence.engine.supervise.limits import SupervisorLimits

PROBE_ID = "\0probe"  # not an id a user would choose


@dataclass(frozen=True, slots=True)
class Decision:
    """After a death."""

    failed: list[RequestUpdate] = field(default_factory=list)  # requests that end with it
    backoff_s: float = 0.0
    give_up: str = ""  # why; "" = another engine is started after `backoff_s`


class Supervision:
    """One engine after the other. Calls come in the order start, ready, died, start, ...; requests at any time."""

    def __init__(self, limits: SupervisorLimits) -> None:
        self.journal = Journal(limits.isolation_s)
        self.num_restarts = 0
        self._limits = limits
        self._life = Lifecycle()
        self._was_ready = False  # some engine was, ever
        self._ready_at: float | None = None  # seconds; of this engine
        self._had_token = False  # from this engine
        self._failed_starts = 0  # in a row
        self._spawn_failures = 0  # in a row
        self._deaths_without_token = 0  # in a row
        self._probe = ""  # "", "due", "running": requests wait for its end

    @property
    def status(self) -> EngineStatus:
        return self._life.status

    @property
    def is_over(self) -> bool:
        return self._life.is_over

    def start(self) -> None:
        """A process is made. The first time the status says so already."""
        if self.status is not EngineStatus.STARTING:
            self._life.move(EngineStatus.STARTING)
        self._had_token = False
        self._probe = "due" if self._deaths_without_token >= self._limits.probe_after else ""

    def ready(self, now: float, is_turn: bool = True) -> None:
        """is_turn: without, other fronts retry their quarantined requests first"""
        self._life.move(EngineStatus.READY)
        self._was_ready = True
        self._ready_at = now
        self._spawn_failures = 0
        self.journal.hold_quarantined(now if is_turn else now + self._limits.isolation_s)

    def due(self, now: float, limit: int) -> list[JournalEntry]:
        """Requests to be handed over now, at most `limit`."""
        if self.status is not EngineStatus.READY or self._probe == "running":
            return []
        if self._probe == "due":
            self._probe = "running"
            return [probe(now)]
        return self.journal.take_due(now, limit)

    def take(self, updates: Iterable[RequestUpdate]) -> list[RequestUpdate]:
        """-> those of open requests"""
        return [update for update in updates if self._take(update)]

    def take_tokens(self, tokens: TokenUpdates) -> list[RequestTokens]:
        """As `take`."""
        self._had_token, self._failed_starts = True, 0
        return self.journal.record_tokens(tokens)

    def died(self, now: float, blameless: bool = False) -> Decision:
        """The process is gone, for whatever reason. blameless: for one that lies neither in it nor in its requests"""
        self._life.move(EngineStatus.DEAD)
        idle = not any(entry.in_engine for entry in self.journal)
        failed = [_failed(entry) for entry in self.journal.engine_died(blameless)]
        if self._had_token or self._is_proven(now):
            self._failed_starts = 0
        elif blameless:
            """The next one shows whether it can start."""
        elif self._ready_at is None or idle:
            self._failed_starts += 1
        self._deaths_without_token = 0 if self._had_token else self._deaths_without_token + 1
        self._ready_at = None
        return self._decide(failed)

    def ranks_missing(self, why: str) -> Decision:
        """The process is gone: some of its ranks did not come. The next one waits for them again, however often that
        happens; requests do not."""
        self._life.move(EngineStatus.DEAD)
        self._ready_at = None
        failure = Failure(FailureCode.ENGINE_DOWN, why)
        left = self.journal.release(everything=True)
        return self._decide([RequestUpdate.end(entry.request_id, FinishReason.ERROR, failure) for entry in left])

    def spawn_failed(self) -> Decision:
        """There is not even a process: no memory, no descriptors."""
        self._life.move(EngineStatus.DEAD)
        self._spawn_failures += 1
        self._deaths_without_token += 1
        return self._decide([])

    def stop(self) -> None:
        if not self.is_over and self.status is not EngineStatus.DRAINING:
            self._life.move(EngineStatus.DRAINING)

    def stopped(self) -> None:
        """After `stop`: the process is gone."""
        if not self.is_over:
            self._life.move(EngineStatus.STOPPED)

    def give_up(self) -> None:
        """For reasons of the caller's."""
        if not self.is_over:
            self._life.move(EngineStatus.GIVEN_UP)

    def _take(self, update: RequestUpdate) -> bool:
        if update.new_token_ids:
            self._had_token = True
            self._failed_starts = 0
        if update.request_id == PROBE_ID and update.finish_reason is not None:
            self._probe = ""
        return self.journal.record(update)

    def _is_proven(self, now: float) -> bool:
        return self._ready_at is not None and now - self._ready_at >= self._limits.proven_s

    def _decide(self, failed: list[RequestUpdate]) -> Decision:
        if why := self._why_give_up():
            self._life.move(EngineStatus.GIVEN_UP)
            return Decision(failed, give_up=why)
        self._life.move(EngineStatus.BACKING_OFF)
        self.num_restarts += 1
        doubled = self._limits.first_backoff_s * 2.0 ** min(max(self._deaths_without_token - 1, 0), 30)
        return Decision(failed, backoff_s=min(doubled, self._limits.max_backoff_s))

    def _why_give_up(self) -> str:
        if not self._limits.gives_up:
            return ""
        if not self._was_ready:
            return "the first engine did not become ready"  # the options are at fault
        if self._failed_starts >= self._limits.max_failed_starts:
            return f"the engine died {self._failed_starts} times in a row without serving anything"
        if self._spawn_failures >= self._limits.max_spawn_failures:
            return f"an engine process could not be made {self._spawn_failures} times in a row"
        return ""


def probe(now: float) -> JournalEntry:
    """One token after one token: what an engine that works can do, whatever its requests are."""
    sampling = SamplingParams(temperature=0, max_tokens=1, detokenize=False, skip_reading_prefix_cache=True)
    stop = StopRule(frozenset(), frozenset(), min_tokens=0, max_tokens=1)
    request = EngineRequest(PROBE_ID, [0], sampling, stop, seed=0, arrival_time=now)
    return JournalEntry(request, encode_request(request))


def _failed(entry: JournalEntry) -> RequestUpdate:
    why = f"the engine died {entry.deaths} times while this request was in it; it is not tried again"
    return RequestUpdate.end(entry.request_id, FinishReason.ERROR, Failure(FailureCode.ENGINE_DIED, why))

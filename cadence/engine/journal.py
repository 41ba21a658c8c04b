"""Every open request and its tokens so far, and who of them may be in the engine: the rules of quarantine.

1. A request that is in the engine when it dies gets a strike. `MARGIN` tokens beyond that point clear it again: a
   request that kills an engine by what it is does so at its own position.
2. With one strike a request comes back at once, together with the others.
3. With two it is a suspect and comes back behind the others, on trial: one suspect at a time, beside requests without
   suspicion. Each suspect that is cleared lets one more be on trial at once; a death puts that back to one. A suspect
   with three strikes is never on trial beside another one.
4. A suspect that was the only one on trial when the engine died is tried alone, first thing in the next engine. The
   others wait for it, at most `alone_s` seconds; new requests wait only then.
5. A suspect that kills an engine which was given nothing else is convicted: it fails, and is not tried again. So is one
   with `MAX_STRIKES`, alone or not: there is always an end.

No request starves: suspects share the engine with new requests, and trials alone happen only right after a death.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from cadence.core.request import EngineRequest
from cadence.core.update import RequestUpdate

MARGIN = 32  # tokens; more than an engine computes before the front hears of them
SUSPECT = 2  # strikes
MAX_STRIKES = 6


@dataclass(slots=True, eq=False)
class JournalEntry:
    """An open request: as it came, with its tokens and its strikes so far."""

    request: EngineRequest
    payload: bytes  # the request as it came, encoded
    token_ids: list[int] = field(default_factory=list)
    in_engine: bool = False
    deaths: int = 0  # of engines, while it was in them
    strikes: int = 0  # deaths since it was last cleared
    died_at: int = 0  # tokens it had at the last one

    @property
    def request_id(self) -> str:
        return self.request.request_id

    @property
    def is_suspect(self) -> bool:
        return self.strikes >= SUSPECT

    def resumed(self) -> EngineRequest:
        return replace(self.request, output_token_ids=tuple(self.token_ids))

    def strike(self) -> None:
        self.in_engine = False
        self.deaths += 1
        self.strikes += 1
        self.died_at = len(self.token_ids)


class Journal:
    def __init__(self, alone_s: float) -> None:
        self._alone_s = alone_s
        self._entries: dict[str, JournalEntry] = {}  # all open ones, in order of arrival
        self._waiting: dict[str, JournalEntry] = {}  # not in the engine, free to go there
        self._suspects: dict[str, JournalEntry] = {}  # not in the engine, to be tried
        self._on_trial: dict[str, JournalEntry] = {}  # suspects in the engine
        self._dropped: set[str] = set()  # ended by the front; the engine has not yet said that it has ended them
        self._alone: JournalEntry | None = None  # tried alone in this engine, or in the next one
        self._alone_until = 0.0
        self._window = 1  # suspects that may be on trial at once
        self._num_handed_over = 0  # to this engine
        self.num_quarantined = 0
        self.num_convicted = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[JournalEntry]:
        return iter(self._entries.values())

    def add(self, entry: JournalEntry) -> None:
        self._entries[entry.request_id] = self._waiting[entry.request_id] = entry

    def drop(self, request_id: str) -> bool:
        """Forgets a request. -> whether the engine must be told"""
        entry = self._entries.pop(request_id, None)
        if entry is None:
            return False
        self._waiting.pop(request_id, None)
        self._suspects.pop(request_id, None)
        self._end_trial(entry, cleared=False)
        if entry.in_engine:
            self._dropped.add(request_id)
        return entry.in_engine

    def note(self, update: RequestUpdate) -> bool:
        """Writes an update down. -> whether it is news of an open request"""
        entry = self._entries.get(update.request_id)
        if entry is None or not entry.in_engine:  # of a request dropped earlier, perhaps under an id used again since
            if update.finish_reason is not None:
                self._dropped.discard(update.request_id)
            return False
        entry.token_ids.extend(update.new_token_ids)
        if update.finish_reason is not None:
            del self._entries[update.request_id]
            self._end_trial(entry, cleared=True)
        elif entry.strikes and len(entry.token_ids) - entry.died_at >= MARGIN:
            entry.strikes = 0
            self._end_trial(entry, cleared=True)
        return True

    def take_due(self, now: float, limit: int) -> list[JournalEntry]:
        """At most `limit` of those to be handed over now. They count as being in the engine from here on."""
        if not self._waiting and not self._suspects:
            return []
        due = self._due(now, limit)
        for entry in due:
            entry.in_engine = True
        self._num_handed_over += len(due)
        return due

    def engine_died(self) -> list[JournalEntry]:
        """All requests are out of the engine. -> those convicted by this death, no longer in the journal"""
        present = [entry for entry in self if entry.in_engine]
        sole = present[0] if len(present) == self._num_handed_over == 1 else None
        self._alone = self._next_alone()
        for entry in present:
            entry.strike()
            self.num_quarantined += entry.strikes == SUSPECT
        convicted = [entry for entry in present if _is_convicted(entry, entry is sole)]
        for entry in convicted:
            self.drop(entry.request_id)
        self.num_convicted += len(convicted)
        self._waiting = {entry.request_id: entry for entry in self if not entry.is_suspect}
        self._suspects = {entry.request_id: entry for entry in self if entry.is_suspect}
        self._on_trial.clear()
        self._dropped.clear()
        self._window, self._num_handed_over = 1, 0
        return convicted

    def _due(self, now: float, limit: int) -> list[JournalEntry]:
        if self._alone is not None:
            if not self._alone.in_engine:
                self._alone_until = now + self._alone_s
                return [self._try(self._alone)]
            if now < self._alone_until:
                return []
            self._alone = None  # the others have waited long enough; with them in the engine, a death convicts none
        free = (entry for name, entry in self._waiting.items() if name not in self._dropped)
        due = list(itertools.islice(free, limit))
        for entry in due:
            del self._waiting[entry.request_id]
        while len(due) < limit and self._suspects:
            candidate = min(self._suspects.values(), key=lambda entry: entry.strikes)
            if not self._has_room(candidate):
                break
            due.append(self._try(candidate))
        return due

    def _has_room(self, candidate: JournalEntry) -> bool:
        strikes = max((entry.strikes for entry in self._on_trial.values()), default=0)
        if max(strikes, candidate.strikes) > SUSPECT:
            return not self._on_trial
        return len(self._on_trial) < self._window

    def _try(self, suspect: JournalEntry) -> JournalEntry:
        del self._suspects[suspect.request_id]
        self._on_trial[suspect.request_id] = suspect
        return suspect

    def _end_trial(self, entry: JournalEntry, cleared: bool) -> None:
        if entry is self._alone:
            self._alone = None
        if self._on_trial.pop(entry.request_id, None) is not None and cleared:
            self._window += 1

    def _next_alone(self) -> JournalEntry | None:
        """The suspect to be tried alone after this death."""
        if len(self._on_trial) == 1:
            return next(iter(self._on_trial.values()))
        return self._alone if self._alone is not None and not self._alone.in_engine else None


def _is_convicted(entry: JournalEntry, sole: bool) -> bool:
    return entry.strikes >= MAX_STRIKES or (sole and entry.strikes > SUSPECT)

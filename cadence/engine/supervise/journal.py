"""Every open request and its tokens so far, and which of them may be in the engine: the rules of quarantine.

1. The death of an engine counts against every request in it. `PROGRESS` tokens beyond that point reset the count: a
   request that kills engines by what it is does so at its own position.
2. With a count of one, a request is resubmitted at once, together with the others.
3. With two it is quarantined: it is retried after the others, one such request at a time, beside requests that are not
   quarantined. Each that is released lets one more be retried at once; a death puts that back to one. A request with
   a count of three or more is never retried beside another one.
4. A request that was the only one retried when the engine died is retried in isolation, first thing in the next engine.
   The others wait for it, at most `isolation_s` seconds; new requests wait only then.
5. A request that kills an engine which was given nothing else fails, and is not retried. So does one with a count of
   `MAX_DEATHS`, isolated or not: there is always an end.

No request starves: quarantined ones share the engine with new requests, and isolation happens only right after a death.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from cadence.core.contract.request import EngineRequest
from cadence.core.contract.update import RequestTokens, RequestUpdate, TokenUpdates

PROGRESS = 32  # tokens; more than an engine computes before the front hears of them
QUARANTINED = 2  # recent deaths
MAX_DEATHS = 6  # recent ones


@dataclass(slots=True, eq=False)
class JournalEntry:
    """An open request: as it came, with its tokens and the deaths counted against it."""

    request: EngineRequest  # once it has tokens, with the digests of what is attached
    payload: bytes  # the request as it came, encoded
    token_ids: list[int] = field(default_factory=list)
    engine: int | None = None  # of several, the one that it is for; None = any
    in_engine: bool = False
    deaths: int = 0  # of engines, while it was in them
    recent_deaths: int = 0  # those since it last made progress
    died_at: int = 0  # tokens it had at the last one

    @property
    def request_id(self) -> str:
        return self.request.request_id

    @property
    def is_quarantined(self) -> bool:
        return self.recent_deaths >= QUARANTINED

    def resumed(self) -> EngineRequest:
        return replace(self.request, output_token_ids=tuple(self.token_ids))

    def keep_digests(self, digests: Mapping[str, str]) -> None:
        """By feature: with this content its tokens were written, and it goes on with no other."""
        attachments = self.request.attachments
        resolved = (each.resolved(digests[each.feature]) if each.feature in digests else each for each in attachments)
        self.request = replace(self.request, attachments=tuple(resolved))

    def count_death(self) -> None:
        self.in_engine = False
        self.deaths += 1
        self.recent_deaths += 1
        self.died_at = len(self.token_ids)


class Journal:
    def __init__(self, isolation_s: float) -> None:
        self._isolation_s = isolation_s
        self._entries: dict[str, JournalEntry] = {}  # all open ones, in order of arrival
        self._numbered: dict[int, JournalEntry] = {}  # by the number that this engine speaks of it by
        self._waiting: dict[str, JournalEntry] = {}  # not in the engine, free to go there
        self._quarantined: dict[str, JournalEntry] = {}  # not in the engine, to be retried
        self._retried: dict[str, JournalEntry] = {}  # quarantined and in the engine
        self._dropped: set[str] = set()  # ended by the front; the engine has not yet said that it has ended them
        self._isolated: JournalEntry | None = None  # retried in isolation in this engine, or in the next one
        self._isolated_until = 0.0
        self._held_until = 0.0  # seconds; quarantined requests wait until then
        self._max_retried = 1  # at once
        self._num_handed_over = 0  # to this engine
        self.num_quarantined = 0
        self.num_failed = 0

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
        self._quarantined.pop(request_id, None)
        self._end_retry(entry, released=False)
        was_in_engine, entry.in_engine = entry.in_engine, False
        if was_in_engine:
            self._dropped.add(request_id)
        return was_in_engine

    def release(self, everything: bool) -> list[JournalEntry]:
        """Requests that are not in the engine leave, for another journal: those that are free to go to an engine, and
        with `everything` the quarantined ones too."""
        left = list(self._waiting.values())
        self._waiting.clear()
        if everything:
            left += self._quarantined.values()
            self._quarantined.clear()
            self._isolated = None
        for entry in left:
            del self._entries[entry.request_id]
        return left

    def record(self, update: RequestUpdate) -> bool:
        """Takes an update in. -> whether it is news of an open request"""
        entry = self._entries.get(update.request_id)
        if entry is None or not entry.in_engine:  # of a request dropped earlier, perhaps under an id used again since
            if update.finish_reason is not None:
                self._dropped.discard(update.request_id)
                self._numbered.pop(update.number, None)
            return False
        entry.token_ids.extend(update.new_token_ids)
        if update.digests:
            entry.keep_digests(dict(update.digests))
        if update.finish_reason is not None:
            del self._entries[update.request_id]
            self._numbered.pop(update.number, None)
            self._end_retry(entry, released=True)
            return True
        if update.number:
            self._numbered[update.number] = entry
        self._note_progress(entry)
        return True

    def record_tokens(self, tokens: TokenUpdates) -> list[RequestTokens]:
        """-> those of open requests"""
        news, numbered = [], self._numbered
        for number, token_ids in tokens.each():
            entry = numbered.get(number)
            if entry is None or not entry.in_engine:  # of a request dropped earlier
                continue
            entry.token_ids += token_ids
            if entry.recent_deaths:
                self._note_progress(entry)
            news.append(RequestTokens(entry.request.request_id, token_ids))
        return news

    def _note_progress(self, entry: JournalEntry) -> None:
        if entry.recent_deaths and len(entry.token_ids) - entry.died_at >= PROGRESS:
            entry.recent_deaths = 0
            self._end_retry(entry, released=True)

    def hold_quarantined(self, until: float) -> None:
        """Of an engine that several fronts share, they are retried by one front at a time."""
        self._held_until = until

    def take_due(self, now: float, limit: int) -> list[JournalEntry]:
        """At most `limit` of those to be handed over now. They count as being in the engine from here on."""
        if not self._waiting and not self._quarantined:
            return []
        due = self._due(now, limit)
        for entry in due:
            entry.in_engine = True
        self._num_handed_over += len(due)
        return due

    def engine_died(self, blameless: bool = False) -> list[JournalEntry]:
        """All requests are out of the engine. -> those that fail by this death, no longer in the journal. blameless: it
        had another cause than its requests"""
        present = [entry for entry in self if entry.in_engine]
        sole = present[0] if len(present) == self._num_handed_over == 1 else None
        self._isolated = self._next_isolated()
        for entry in present:
            entry.in_engine = False
            if not blameless:
                entry.count_death()
                self.num_quarantined += entry.recent_deaths == QUARANTINED
        failed = [entry for entry in present if not blameless and _fails(entry, entry is sole)]
        for entry in failed:
            self.drop(entry.request_id)
        self.num_failed += len(failed)
        self._waiting = {entry.request_id: entry for entry in self if not entry.is_quarantined}
        self._quarantined = {entry.request_id: entry for entry in self if entry.is_quarantined}
        self._retried.clear()
        self._dropped.clear()
        self._numbered.clear()
        self._max_retried, self._num_handed_over = 1, 0
        return failed

    def _due(self, now: float, limit: int) -> list[JournalEntry]:
        is_held = now < self._held_until
        if self._isolated is not None and (self._isolated.in_engine or not is_held):
            if not self._isolated.in_engine:
                self._isolated_until = now + self._isolation_s
                return [self._retry(self._isolated)]
            if now < self._isolated_until:
                return []
            self._isolated = None  # the others have waited long enough; with them in the engine, a death fails none
        free = (entry for name, entry in self._waiting.items() if name not in self._dropped)
        due = list(itertools.islice(free, limit))
        for entry in due:
            del self._waiting[entry.request_id]
        while len(due) < limit and self._quarantined and not is_held:
            candidate = min(self._quarantined.values(), key=lambda entry: entry.recent_deaths)
            if not self._has_room(candidate):
                break
            due.append(self._retry(candidate))
        return due

    def _has_room(self, candidate: JournalEntry) -> bool:
        deaths = max((entry.recent_deaths for entry in self._retried.values()), default=0)
        if max(deaths, candidate.recent_deaths) > QUARANTINED:
            return not self._retried
        return len(self._retried) < self._max_retried

    def _retry(self, entry: JournalEntry) -> JournalEntry:
        del self._quarantined[entry.request_id]
        self._retried[entry.request_id] = entry
        return entry

    def _end_retry(self, entry: JournalEntry, released: bool) -> None:
        if entry is self._isolated:
            self._isolated = None
        if self._retried.pop(entry.request_id, None) is not None and released:
            self._max_retried += 1

    def _next_isolated(self) -> JournalEntry | None:
        """The request to be retried in isolation after this death."""
        if len(self._retried) == 1:
            return next(iter(self._retried.values()))
        return self._isolated if self._isolated is not None and not self._isolated.in_engine else None


def _fails(entry: JournalEntry, sole: bool) -> bool:
    return entry.recent_deaths >= MAX_DEATHS or (sole and entry.recent_deaths > QUARANTINED)

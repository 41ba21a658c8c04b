"""Requests with pictures, sounds or vectors among their tokens.

A step that comes to such tokens needs what a tower makes of them. Each content is encoded once, by the first step that
needs it, and kept; a step encodes so much and no more, and a prompt stops before what it cannot have yet. Tokens that
see each other whatever their order are computed in one step.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from cadence.core.contract.media_work import MediaRun, MediaStep, MediaWork, RopeRow
from cadence.core.contract.request import EngineRequest
from cadence.core.inputs.media import MEDIA, NO_MEDIA_STATS, MediaInput, MediaItem, MediaStats
from cadence.scheduler.feature import Books, Decodes, HostFeature
from cadence.scheduler.features.media.cache import EncoderCache
from cadence.scheduler.plan import PlanDraft
from cadence.scheduler.request_state import NO_ROW, RequestState


class MediaContents(HostFeature):
    name = MEDIA
    computes = True

    def __init__(self, cache: EncoderCache, budget: int, ahead: int = 0) -> None:
        """budget: vectors that a step encodes, unless one content has more; ahead: 1 where a head drafts, which looks
        at the token after a step's last"""
        self._cache = cache
        self._budget = budget
        self._beyond = ahead
        self._runs: dict[str, list[MediaRun]] = {}  # by request, of the step that is being planned
        self._unused: set[int] = set()  # first pages of contents that were encoded, and that no request has come to
        self._stats = NO_MEDIA_STATS
        self.ahead: dict[int, RequestState] = {}  # by row: requests with items that no step has come to the end of

    @property
    def cut_rows(self) -> Iterable[int]:
        return list(self.ahead)

    def cut(self, draft: PlanDraft, request: RequestState, start: int, end: int, most: int) -> int:
        content = request.request.attached(MediaInput)
        if content is None:
            return end
        runs: list[MediaRun] = []
        for item in content.items:
            if item.end <= start or item.start >= end:
                continue
            if item.both_ways and item.end > end:
                if item.start > start or item.end > most:
                    end = item.start
                    break
                end = item.end
            pages = self._pages(draft, item)
            if not pages:
                end = max(item.start, start)
                break
            first = max(start, item.start)
            last = min(end + self._beyond, item.end)
            runs.append(
                MediaRun(
                    row=request.row,
                    at=first - start,
                    count=last - first,
                    first=first - item.start,
                    pages=pages,
                    both_ways=item.both_ways,
                    beyond=max(last - end, 0),
                )
            )
        runs = [run for run in runs if run.at < end - start]
        self._runs[request.id] = [*runs, *self._next(draft, content, start, end)]
        return end

    def _next(self, draft: PlanDraft, content: MediaInput, start: int, end: int) -> list[MediaRun]:
        """Where the step ends before an item, and a head looks at its first token: if there is room for it."""
        item = next((item for item in content.items if item.start == end), None)
        if not self._beyond or end == start or item is None or not (pages := self._pages(draft, item)):
            return []
        return [MediaRun(row=NO_ROW, at=end - start, count=1, first=0, pages=pages, beyond=1)]

    def _pages(self, draft: PlanDraft, item: MediaItem) -> list[int]:
        """Of what comes of an item, which may be encoded by this step; []: not yet."""
        if pages := self._cache.use(item.digest, draft.step_id):
            return pages
        encoded = sum(work.length for work in draft.payloads.get(MEDIA, MediaStep()).works)
        if encoded and encoded + item.length > self._budget:
            return []
        if pages := self._cache.add(item.digest, item.length, draft.step_id):
            self._unused.add(pages[0])
            _step_of(draft).works.append(MediaWork(item.kind, item.values_np, item.grid, item.length, pages))
        return pages

    def dropped(self, draft: PlanDraft) -> None:
        """No device hears of what the step was to encode."""
        added = {work.pages[0] for work in draft.payloads.get(MEDIA, MediaStep()).works}
        self._unused -= added
        self._cache.drop(draft.step_id, added)

    def booked(self, draft: PlanDraft, books: Books, decodes: Decodes) -> None:
        if self._runs:
            for row in decodes.rows_np.tolist():
                if row in self.ahead:
                    self._send(draft, self.ahead[row], int(books.rows.computed_np[row]))
            self._runs.clear()

    def begin(self, request: RequestState, draft: PlanDraft) -> RopeRow | None:
        content = request.request.attached(MediaInput)
        if content is None:
            return None
        self.ahead[request.row] = request
        return RopeRow(content.rope_segments_np)

    def admitted(self, draft: PlanDraft, request: RequestState, end: int) -> None:
        if request.id in self._runs:
            self._send(draft, request, end)

    def _send(self, draft: PlanDraft, request: RequestState, end: int) -> None:
        """The step computes the request's tokens up to `end`."""
        for run in self._runs.pop(request.id, ()):
            _step_of(draft).runs.append(replace(run, row=request.row))
            if run.count == run.beyond:
                continue  # the next step comes to it
            if run.first == 0:
                self._stats = self._stats.plus(MediaStats(1, run.pages[0] not in self._unused))
            self._unused.discard(run.pages[0])
        content = request.request.attached(MediaInput)
        if content is None or all(item.end <= end for item in content.items[-1:]):
            self.ahead.pop(request.row, None)

    def release(self, request: RequestState) -> None:
        if self.ahead.get(request.row) is request:
            del self.ahead[request.row]

    def stats(self, requests: Iterable[RequestState], preparing: Sequence[EngineRequest]) -> MediaStats:
        return self._stats


def _step_of(draft: PlanDraft) -> MediaStep:
    step: MediaStep = draft.payloads.setdefault(MEDIA, MediaStep())
    return step

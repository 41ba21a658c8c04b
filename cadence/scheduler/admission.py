"""From the waiting queue to a row: prefix cache, budget, blocks, and what features decide."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np

from cadence.core.contract.step import NewRow, RowPayloads
from cadence.scheduler.feature import Books, HostFeature, with_own
from cadence.scheduler.kv.manager import PrefixHit
from cadence.scheduler.pace import PromptRoom
from cadence.scheduler.plan import PlanDraft
from cadence.scheduler.queue import WaitingQueue
from cadence.scheduler.request_state import NO_ROW, OrderKey, RequestState, Status
from cadence.scheduler.running import RunningList


class Admission:
    """Strictly in order: the first in the queue that cannot be admitted holds up the rest, unless a feature holds it
    back: then it waits aside."""

    def __init__(
        self, books: Books, waiting: WaitingQueue, running: RunningList, features: Sequence[HostFeature]
    ) -> None:
        self._budget = books.budget
        self._waiting = waiting
        self._running = running
        self._rows = books.rows
        self._kv = books.kv
        self._features = with_own(features, "begin")
        self._gates = with_own(features, "holds")
        self._measuring = with_own(features, "admits")
        self._cutting, self._counting = with_own(features, "cut"), with_own(features, "admitted")
        self._seen_changes = [0] * len(self._gates)  # of each, when requests that it has parked were looked at last
        self._refused_key: OrderKey = (0, 0.0, 0)  # last request for which there were too few blocks
        self._refused_at = 0  # blocks that were free then
        self.prefix_queries = 0  # tokens of fresh requests that consulted the prefix cache
        self.prefix_hits = 0  # of these, tokens found

    def run(self, draft: PlanDraft, room: PromptRoom, is_brief: Callable[[RequestState], bool]) -> None:
        """Admits while rows, blocks and the step's room for prompts last. is_brief: of prompts that keep it short"""
        self._recall_parked()
        while room.tokens > 0 and self._waiting.num_ready and self._rows.num_free:
            request = self._waiting.peek()
            if request.row != NO_ROW:
                return  # preempted, and a step naming its old row is still in flight
            if self._gates and self._parks(request):
                continue
            if self.was_refused(request):
                return
            hit = self._kv.find_prefix(request.blocks, request.tokens, request.reads_cache)
            computed = hit.num_blocks * self._kv.block_size
            missing = len(request.tokens) - computed
            if missing > room.tokens and self._budget.whole:
                return
            if not self._kv.fits(hit, self._held(request, len(request.tokens))):
                self._refused_key, self._refused_at = request.key, self._kv.num_free
                return
            if self._measuring and not all(feature.admits(request, hit, draft) for feature in self._measuring):
                return
            if is_brief(request):
                room.shorten()
            left = room.tokens
            num_tokens = room.grant(min(missing, self._budget.chunk), computed)
            if num_tokens and self._cutting:
                num_tokens = self._cut(draft, request, computed, num_tokens, left)
                room.tokens = min(room.tokens, left - num_tokens)
            if not num_tokens:
                return
            self._waiting.pop()
            self._place(draft, request, hit, num_tokens)

    def _cut(self, draft: PlanDraft, request: RequestState, start: int, num_tokens: int, left: int) -> int:
        """-> how many tokens from `start` on features let the plan compute. left: in the step"""
        most = min(start + min(left, self._budget.chunk), len(request.tokens))
        end = start + num_tokens
        for feature in self._cutting:
            end = feature.cut(draft, request, start, end, most)
        return end - start

    def could_admit(self) -> bool:
        """Whether the first in the queue may get a row in the next plan, as far as can be told at a glance."""
        if not (self.has_next and self._rows.num_free):
            return False
        request = self._waiting.peek()
        return request.row == NO_ROW and not self.was_refused(request)

    @property
    def has_next(self) -> bool:
        """Whether a request is ready for a row."""
        self._recall_parked()
        return self._waiting.num_ready > 0

    def _recall_parked(self) -> None:
        for number, gate in enumerate(self._gates):
            if self._seen_changes[number] != gate.changes:
                self._seen_changes[number] = gate.changes
                for text in gate.recall(self._waiting.parked(gate.name)):
                    self._waiting.recall((gate.name, text))

    def _parks(self, request: RequestState) -> bool:
        """Whether the first in the queue waits aside from now on."""
        for gate in self._gates:
            if text := gate.holds(request):
                self._waiting.park((gate.name, text))
                return True
        return False

    def was_refused(self, request: RequestState) -> bool:
        """Too few blocks for it the last time, and no more now: a long prompt is not looked up every step."""
        return request.key == self._refused_key and self._kv.num_free <= self._refused_at

    def _place(self, draft: PlanDraft, request: RequestState, hit: PrefixHit, num_tokens: int) -> None:
        computed = hit.num_blocks * self._kv.block_size
        self._count(request, computed)
        self._kv.begin(request.blocks, hit, self._held(request, computed + num_tokens))
        samples = self._rows.begin(request, computed, computed + num_tokens, draft.step_id)
        request.status = Status.RUNNING
        self._running.add(request)
        self._note_blocks(request, hit, computed + num_tokens)
        payloads = RowPayloads()
        for feature in self._features:
            if (payload := feature.begin(request, draft)) is not None:
                payloads[feature.name] = payload
        draft.admit(_new_row(request, computed, payloads), num_tokens, samples)
        for feature in self._counting:
            feature.admitted(draft, request, computed + num_tokens)

    def _held(self, request: RequestState, num_tokens: int) -> int:
        """Tokens for which it gets blocks, with so many computed; the last it may have is never computed."""
        return max(num_tokens, min(num_tokens + self._budget.runs.reserve, request.max_len - 1))

    def _count(self, request: RequestState, computed: int) -> None:
        if request.num_preemptions:
            return
        request.first_scheduled_time = time.monotonic()
        request.num_cached = computed
        if request.reads_cache:
            self.prefix_queries += len(request.tokens)
            self.prefix_hits += computed

    def _note_blocks(self, request: RequestState, hit: PrefixHit, end: int) -> None:
        kv, blocks = self._kv, request.blocks
        registered, filled = kv.first_to_register(hit), end // kv.block_size
        if filled > registered:
            # At once: the next request of this plan may go on from these blocks, because a layer writes all
            # keys and values of a step before it reads any.
            kv.register(blocks, request.tokens, registered, filled)
        self._rows.hold(request.row, kv.capacity(blocks), kv.next_release(blocks), max(registered, filled))


def _new_row(request: RequestState, computed: int, payloads: RowPayloads) -> NewRow:
    return NewRow(
        row=request.row,
        request_id=request.id,
        token_ids_np=np.fromiter(request.tokens, dtype=np.int32, count=len(request.tokens)),
        prompt_len=request.prompt_len,
        num_computed=computed,
        block_ids=tuple([[block.id for block in table] for table in request.blocks.tables]),
        sampling=request.request.params,
        seed=request.request.seed,
        stop_token_ids=request.stop_ids,
        max_len=request.max_len,
        payloads=payloads,
        samples=request.samples,
    )

"""Models with layers that keep a state: a prompt goes on from the longest of its prefixes of which there is a snapshot.

A state can be saved only between two steps, when it has taken in a prefix and nothing more. So prompts are cut there,
at the ends of blocks that a later prompt may share:

- the last one before the end of a prompt, which the same prompt can go on from, and the next turn of a chat;
- the last one that a prompt shares with an earlier one: the end of a system prompt, say.

The step after the one that ended there saves it, before its rows begin. From then on it is found.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from cadence.core.contract.request import EngineRequest
from cadence.core.model.state_spec import STATES, StateStats
from cadence.scheduler.feature import Books, Decodes, HostFeature
from cadence.scheduler.features.states.held import num_running
from cadence.scheduler.features.states.snapshots import NO_SLOT, SeenPrefixes, Snapshots
from cadence.scheduler.kv.hashing import extend_hashes
from cadence.scheduler.plan import PlanDraft
from cadence.scheduler.request_state import NO_ROW, RequestState

LEAST_GAIN = 64  # tokens that a snapshot saves a later prompt, or it is not worth a step that ends there
_SEEN = 1 << 16  # blocks of prompts that are remembered


@dataclass(slots=True)
class _Save:
    request: RequestState
    row: int
    digest: bytes
    ended_in: int  # the step after which the row's state is that of the prefix
    slot: int = NO_SLOT
    saved_in: int = 0  # the step that saves it


class StateSnapshots(HostFeature):
    name = STATES

    def __init__(self, snapshots: Snapshots, block_size: int, least_gain: int = LEAST_GAIN, num_rows: int = 0) -> None:
        """num_rows: states of running requests that there is room for"""
        self._snapshots = snapshots
        self._num_rows = num_rows
        self._block_size = block_size
        self._least_gain = least_gain
        self._seen = SeenPrefixes(_SEEN)
        self._ends: dict[str, list[int]] = {}  # by request: where it is to be cut, in tokens
        self._ahead: dict[int, RequestState] = {}  # by row: requests with such ends before them
        self._saves: list[_Save] = []  # that no step was sent for
        self._made: dict[str, list[bytes]] = {}  # by request that has not ended: prefixes that it was saved at
        self._num_saved = self._num_restored = 0

    def longest_hit(self, hashes: Sequence[bytes], limit: int) -> int:
        for count in range(limit, 0, -1):
            if hashes[count - 1] in self._snapshots:
                return count
        return 0

    @property
    def cut_rows(self) -> Iterable[int]:
        return list(self._ahead)

    def cut(self, draft: PlanDraft, request: RequestState, start: int, end: int, most: int) -> int:
        if request.row == NO_ROW:  # it is about to begin, in this step or a later one
            self._ends[request.id] = self._ends_of(request, start)
        return next((at for at in self._ends.get(request.id, ()) if start < at < end), end)

    def begin(self, request: RequestState, draft: PlanDraft) -> int | None:
        if self._ends.get(request.id):
            self._ahead[request.row] = request
        self._seen.add(request.blocks.hashes[: len(request.tokens) // self._block_size])
        if not request.begins_at:
            return None
        self._num_restored += 1
        return self._snapshots.use(self._digest(request, request.begins_at), draft.step_id)

    def admitted(self, draft: PlanDraft, request: RequestState, end: int) -> None:
        self._note(draft, request, end)

    def booked(self, draft: PlanDraft, books: Books, decodes: Decodes) -> None:
        """Requests that begin in this step may go on from what it saves."""
        self._save(draft)
        if self._ahead:
            for row in decodes.rows_np.tolist():
                if row in self._ahead:
                    self._note(draft, self._ahead[row], int(books.rows.computed_np[row]))

    def release(self, request: RequestState) -> None:
        if self._ahead.get(request.row) is request:
            self._pass(request)

    def leave(self, request: RequestState) -> None:
        self._ends.pop(request.id, None)
        self._made.pop(request.id, None)

    def forget(self, request: RequestState | None) -> None:
        if request is None:
            self._snapshots.clear()
        self._saves = [save for save in self._saves if request is not None and save.request is not request]
        for digest in self._made.pop(request.id, ()) if request is not None else ():
            self._snapshots.drop(digest)

    def stats(self, requests: Iterable[RequestState], preparing: Sequence[EngineRequest]) -> StateStats:
        held = self._snapshots
        return StateStats(
            rows=self._num_rows,
            running=num_running(requests),
            slots=held.num_slots,
            used=len(held),
            saved=self._num_saved,
            restored=self._num_restored,
            evicted=held.num_evicted,
        )

    def _ends_of(self, request: RequestState, start: int) -> list[int]:
        """Where a request that goes on from token `start` is to be cut."""
        tokens, size = request.tokens, self._block_size
        count = (len(tokens) - 1) // size
        extend_hashes(request.blocks, tokens, size, count)
        ends: list[int] = []
        for blocks in (self._seen.count(request.blocks.hashes[:count]), count):
            end = self._before_spans(request, blocks * size)
            if end - max(start, *ends, 0) >= self._least_gain:
                ends.append(end)
        return ends

    def _before_spans(self, request: RequestState, end: int) -> int:
        """No prompt goes on from within some spans."""
        for span in reversed(request.blocks.spans):
            if span.whole and span.start < end < span.end:
                end = span.start // self._block_size * self._block_size
        return end

    def _digest(self, request: RequestState, end: int) -> bytes:
        return request.blocks.hashes[end // self._block_size - 1]

    def _note(self, draft: PlanDraft, request: RequestState, end: int) -> None:
        """The step computes the request's tokens up to `end`."""
        ends = self._ends.get(request.id, [])
        if end in ends:
            self._saves.append(_Save(request, request.row, self._digest(request, end), draft.step_id))
        if not ends or end >= ends[-1]:
            self._pass(request)

    def _pass(self, request: RequestState) -> None:
        """No end is before it."""
        self._ends.pop(request.id, None)
        self._ahead.pop(request.row, None)

    def _save(self, draft: PlanDraft) -> None:
        """What earlier steps have left. A draft may come to nothing: the next one has the same number, and says it
        again."""
        self._saves = [save for save in self._saves if save.saved_in in (0, draft.step_id)]
        for save in self._saves:
            if save.ended_in == draft.step_id:
                continue
            if not save.saved_in and save.digest not in self._snapshots:
                save.slot = self._snapshots.add(save.digest, draft.step_id)
                if save.slot != NO_SLOT:
                    self._made.setdefault(save.request.id, []).append(save.digest)
                    self._num_saved += 1
            save.saved_in = draft.step_id
            if save.slot != NO_SLOT:
                draft.payloads.setdefault(STATES, []).append((save.row, save.slot))

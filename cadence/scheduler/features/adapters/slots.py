"""Which adapters lie on the device: a running request has one of few slots, and shares it with others of its adapter.

A slot is given to another adapter when no row uses it, the one that was given out longest ago first. A request that
finds none waits aside, and holds up none that needs no slot or has one. It is not starved: a slot is kept for it, so
that it comes free. Of younger requests that slot still serves those that were there when it was given to their adapter.
An adapter that is pinned keeps the slot that it gets with its first request.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Iterable, Sequence

from cadence.core.adapter import ADAPTERS, NO_SLOT, AdapterSpec, AdapterStats
from cadence.core.contract.request import EngineRequest
from cadence.core.errors import InvalidRequestError
from cadence.scheduler.feature import HostFeature
from cadence.scheduler.plan import PlanDraft
from cadence.scheduler.request_state import OrderKey, RequestState, Status


class AdapterSlots(HostFeature):
    """Says of a row which slot it uses, and sends with a plan what lies in slots from then on."""

    name = ADAPTERS

    def __init__(self, num_slots: int) -> None:
        self._digests = [""] * num_slots  # [slots] what lies there
        self._users = [0] * num_slots  # [slots] rows that use it, those in flight included
        self._given = [0] * num_slots  # [slots] number of the row that got it last
        self._terms = [0] * num_slots  # [slots] the last request that there was when it was given to its adapter
        self._slots: dict[str, int] = {}  # by digest
        self._taken: dict[int, int] = {}  # slots of requests that have a row, by their numbers
        self._kept: dict[str, tuple[int, OrderKey]] = {}  # by digest that waits: the slot kept for it, and its oldest
        self._in_use: Counter[str] = Counter()  # digests of all requests that have not ended
        self._pinned: set[str] = set()  # digests
        self._num_given = 0
        self._newest = 0  # the last request, by the number in its key

    @property
    def count(self) -> int:
        return len(self._digests)

    @property
    def in_use(self) -> Collection[str]:
        """Digests of all requests that have not ended."""
        return self._in_use.keys()

    @property
    def pinned(self) -> Collection[str]:
        """Digests."""
        return self._pinned

    def serves(self, digest: str) -> bool:
        """Whether requests of this adapter may ever have a slot."""
        return digest in self._pinned or len(self._pinned) < self.count

    def pin(self, digest: str) -> None:
        """Its slot goes to no other adapter. Raises InvalidRequestError where others would be left without one."""
        if digest in self._pinned:
            return
        limit = f"there are {self.count} slots for adapters (max_loras)"
        if len(self._pinned) >= self.count:
            raise InvalidRequestError(f"{limit}, and as many adapters are pinned", "lora_id")
        if len(self._pinned) + 1 == self.count and self._in_use.keys() - self._pinned - {digest}:
            raise InvalidRequestError(f"{limit}, and requests with other adapters need the last one", "lora_id")
        self._pinned.add(digest)
        self._kept.clear()
        self.changes += 1

    def unpin(self, digest: str) -> None:
        self._pinned.discard(digest)
        self.changes += 1

    def join(self, request: RequestState) -> None:
        self._newest = max(self._newest, request.number)
        if digest := _digest(request):
            self._in_use[digest] += 1

    def leave(self, request: RequestState) -> None:
        """It has ended. A row that it has uses its slot until it is released."""
        if digest := _digest(request):
            self._in_use[digest] -= 1
            if not self._in_use[digest]:
                del self._in_use[digest]

    def holds(self, request: RequestState) -> str:
        """Requests wait aside by their digests. For one that does a slot is kept, unless all are."""
        digest = _digest(request)
        if not digest:
            return ""
        if (slot := self._slots.get(digest, NO_SLOT)) != NO_SLOT:
            admitted = request.number <= self._terms[slot] or not self._is_kept(slot, request.key)
            return "" if admitted else digest
        if self._idle(digest, request.key) != NO_SLOT:
            return ""
        self._keep(digest, request.key)
        return digest

    def begin(self, request: RequestState, draft: PlanDraft) -> int | None:
        digest = _digest(request)
        if not digest:
            return None
        slot = self._slots.get(digest, NO_SLOT)
        if slot == NO_SLOT:
            slot = self._idle(digest, request.key)
            self._put(slot, digest)
            draft.payloads.setdefault(self.name, []).append((slot, digest))
        self._num_given += 1
        self._users[slot] += 1
        self._given[slot] = self._num_given
        self._taken[request.number] = slot
        return slot

    def slot_of(self, request: RequestState) -> int:
        """Of a request that has a row."""
        return self._taken.get(request.number, NO_SLOT)

    def release(self, request: RequestState) -> None:
        slot = self._taken.pop(request.number, NO_SLOT)
        if slot != NO_SLOT:
            self._users[slot] -= 1
            self.changes += not self._users[slot]

    def stats(self, requests: Iterable[RequestState], preparing: Sequence[EngineRequest]) -> AdapterStats:
        running, waiting = set[str](), {spec.name for each in preparing if (spec := each.attached(AdapterSpec))}
        for request in requests:
            if spec := request.request.attached(AdapterSpec):
                (running if request.status is Status.RUNNING else waiting).add(spec.name)
        return AdapterStats(tuple(sorted(running)), tuple(sorted(waiting)), time.time())

    def recall(self, waiting: Iterable[tuple[OrderKey, str]]) -> list[str]:
        """waiting: digests. For those that are not recalled slots are kept."""
        self._kept.clear()
        num_idle = sum(map(self._is_idle, range(self.count)))
        recalled = []
        for key, digest in waiting:
            if digest in self._slots:
                recalled.append(digest)
            elif num_idle:
                num_idle -= 1
                recalled.append(digest)
            else:
                self._keep(digest, key)
        return recalled

    def _put(self, slot: int, digest: str) -> None:
        self._slots.pop(self._digests[slot], None)
        self._digests[slot], self._slots[digest] = digest, slot
        self._terms[slot] = self._newest
        self._kept.pop(digest, None)
        self.changes += 1

    def _keep(self, digest: str, key: OrderKey) -> None:
        """Of the slots that no request waits for, the one given out longest ago. Since it is given out no more, a later
        choice is the same."""
        if digest in self._kept:
            return
        kept = {slot for slot, _ in self._kept.values()}
        free = [slot for slot in range(self.count) if slot not in kept and self._digests[slot] not in self._pinned]
        if free:
            self._kept[digest] = (min(free, key=self._given.__getitem__), key)

    def _is_kept(self, slot: int, key: OrderKey) -> bool:
        """For one that is older."""
        return any(slot == kept and oldest < key for kept, oldest in self._kept.values())

    def _idle(self, digest: str, key: OrderKey) -> int:
        """The slot to put this adapter into, or none."""
        mine, _ = self._kept.get(digest, (NO_SLOT, key))
        idle = filter(self._is_idle, range(self.count))
        free = [slot for slot in idle if slot == mine or not self._is_kept(slot, key)]
        return min(free, key=self._given.__getitem__, default=NO_SLOT)

    def _is_idle(self, slot: int) -> bool:
        """No row uses what lies there, and no request wants it to stay."""
        return not self._users[slot] and self._digests[slot] not in self._pinned


def _digest(request: RequestState) -> str:
    """Of its adapter; "" = it has none."""
    spec = request.request.attached(AdapterSpec)
    return spec.digest if spec is not None else ""

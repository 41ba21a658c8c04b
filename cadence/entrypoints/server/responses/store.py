"""Responses that are over, by id: for a while, bounded in number, size and age.

Each tenant has its own: what another made is as unknown as what was never made. The bounds are for all of them
together, and the tenant that holds most is evicted from first.
"""

from __future__ import annotations

import dataclasses
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from cadence.core.contract.response_messages import StoredResponse

MAX_RESPONSES = 1024
MAX_BYTES = 64 * 2**20
MAX_AGE_S = 3600.0


@dataclass(slots=True)
class ResponseStore:
    max_responses: int = MAX_RESPONSES
    max_bytes: int = MAX_BYTES
    max_age_s: float = MAX_AGE_S
    clock: Callable[[], float] = time.monotonic
    _tenants: dict[str, TenantResponses] = field(default_factory=dict)

    def of(self, tenant: str) -> TenantResponses:
        if tenant not in self._tenants:
            self._tenants[tenant] = TenantResponses(self)
        return self._tenants[tenant]

    def __len__(self) -> int:
        return sum(len(one) for one in self._tenants.values())

    def make_room(self) -> None:
        tenants = self._tenants.values()
        while sum(one.size for one in tenants) > self.max_bytes:
            max(tenants, key=lambda one: one.size).drop_oldest()
        while len(self) > self.max_responses:
            max(tenants, key=len).drop_oldest()


class TenantResponses:
    """The responses of one tenant."""

    def __init__(self, store: ResponseStore) -> None:
        self.size = 0  # bytes of those that are stored
        self._store = store
        self._stored: OrderedDict[str, StoredResponse] = OrderedDict()  # the least recently used first
        self._holders: dict[str, str] = {}  # item id -> the response that was stored with it last

    def keep(self, response_id: str, response: StoredResponse) -> None:
        self.drop(response_id)
        stored = dataclasses.replace(response, stored_at=self._store.clock())
        self._stored[response_id] = stored
        self.size += stored.size
        self._holders |= dict.fromkeys(stored.item_ids, response_id)
        self._store.make_room()

    def get(self, response_id: str) -> StoredResponse | None:
        stored = self._stored.get(response_id)
        if stored is None:
            return None
        if self._store.clock() - stored.stored_at > self._store.max_age_s:
            self._forget(response_id)
            return None
        self._stored.move_to_end(response_id)
        return stored

    def holding(self, item_id: str) -> StoredResponse | None:
        """A response whose conversation has this item."""
        return self.get(self._holders.get(item_id, ""))

    def drop(self, response_id: str) -> bool:
        """Whether there was one."""
        known = self.get(response_id) is not None
        if known:
            self._forget(response_id)
        return known

    def drop_oldest(self) -> None:
        self._forget(next(iter(self._stored)))

    def __len__(self) -> int:
        return len(self._stored)

    def _forget(self, response_id: str) -> None:
        stored = self._stored.pop(response_id)
        self.size -= stored.size
        for item_id in stored.item_ids:
            if self._holders.get(item_id) == response_id:
                del self._holders[item_id]

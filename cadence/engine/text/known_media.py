"""What clients have sent before under a name of theirs (`uuid`), so that they need not send it again."""

from __future__ import annotations

from collections import OrderedDict
from threading import Lock
from typing import NamedTuple

from cadence.media.family import Prepared

MOST_ITEMS = 4096


class MediaName(NamedTuple):
    """Tenants, and requests that share no cache, know nothing of each other's."""

    tenant: str
    salt: str
    kind: str
    uuid: str
    prepared_as: str  # what the request said of that


class KnownMedia:
    """Prepared media, those that were used last. Contents are told apart by their own digests all the same: a name may
    come with other contents at any time, and stands for these from then on."""

    def __init__(self, most_bytes: int, most_items: int = MOST_ITEMS) -> None:
        self._most_bytes, self._most_items = most_bytes, most_items
        self._lock = Lock()
        self._items: OrderedDict[MediaName, Prepared] = OrderedDict()
        self._num_bytes = 0

    def keep(self, name: MediaName, prepared: Prepared) -> None:
        with self._lock:
            self._drop(name)
            self._items[name] = prepared
            self._num_bytes += _num_bytes(prepared)
            while self._num_bytes > self._most_bytes or len(self._items) > self._most_items:
                self._drop(next(iter(self._items)))

    def find(self, name: MediaName) -> Prepared | None:
        with self._lock:
            if name in self._items:
                self._items.move_to_end(name)
            return self._items.get(name)

    def forget(self) -> None:
        with self._lock:
            self._items.clear()
            self._num_bytes = 0

    def _drop(self, name: MediaName) -> None:
        if (before := self._items.pop(name, None)) is not None:
            self._num_bytes -= _num_bytes(before)


def _num_bytes(prepared: Prepared) -> int:
    return sum(content.values_np.nbytes for content in prepared.contents)

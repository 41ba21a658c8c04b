"""Slots for snapshots: which prefix the state in each of them is of."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

NO_SLOT = -1


@dataclass(slots=True)
class _Kept:
    slot: int
    used_in: int  # the last step that writes or reads it


class Snapshots:
    """By digest of the prefix, those used least recently first. One that a step writes or reads stays until the next
    step is planned: a device carries out steps in order, and saves in a step before it restores."""

    def __init__(self, num_slots: int) -> None:
        self.num_slots = num_slots
        self.num_evicted = 0
        self._free = list(range(num_slots - 1, -1, -1))
        self._by_digest: OrderedDict[bytes, _Kept] = OrderedDict()

    def __contains__(self, digest: bytes) -> bool:
        return digest in self._by_digest

    def __len__(self) -> int:
        return len(self._by_digest)

    def use(self, digest: bytes, step_id: int) -> int:
        """-> where it is, to be read by this step; NO_SLOT where there is none."""
        found = self._by_digest.get(digest)
        if found is None:
            return NO_SLOT
        found.used_in = step_id
        self._by_digest.move_to_end(digest)
        return found.slot

    def add(self, digest: bytes, step_id: int) -> int:
        """A slot that this step writes, of a prefix that has none; NO_SLOT where it uses all of them itself."""
        if not self._free:
            oldest = next(iter(self._by_digest), b"")
            if not oldest or self._by_digest[oldest].used_in >= step_id:
                return NO_SLOT
            self.drop(oldest)
            self.num_evicted += 1
        slot = self._free.pop()
        self._by_digest[digest] = _Kept(slot, step_id)
        return slot

    def drop(self, digest: bytes) -> None:
        """It is not to be used again."""
        if (found := self._by_digest.pop(digest, None)) is not None:
            self._free.append(found.slot)

    def clear(self) -> None:
        for digest in list(self._by_digest):
            self.drop(digest)


class SeenPrefixes:
    """Digests of blocks of prompts that came before, as many of the last ones as there is room for."""

    def __init__(self, room: int) -> None:
        self._room = room
        self._digests: OrderedDict[bytes, None] = OrderedDict()

    def count(self, digests: list[bytes]) -> int:
        """Leading ones that were seen."""
        for index, digest in enumerate(digests):
            if digest not in self._digests:
                return index
        return len(digests)

    def add(self, digests: list[bytes]) -> None:
        """The ends of prompts are forgotten before their beginnings."""
        for digest in reversed(digests):
            self._digests[digest] = None
            self._digests.move_to_end(digest)
        while len(self._digests) > self._room:
            self._digests.popitem(last=False)

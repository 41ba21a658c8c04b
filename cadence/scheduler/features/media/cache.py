"""The encoder cache as the scheduler sees it: what towers made of which content, in pages of a few vectors."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection
from dataclasses import dataclass

from cadence.core.contract.media_work import PAGE


@dataclass(slots=True)
class Kept:
    pages: list[int]
    used_in: int  # the last step whose tokens get its vectors


class EncoderCache:
    """Contents by digest, those used least recently first. What a step uses stays until the next one is planned: a
    device computes steps in order."""

    def __init__(self, num_vectors: int) -> None:
        self._free = list(range(-(-num_vectors // PAGE)))
        self._kept: OrderedDict[str, Kept] = OrderedDict()
        self.num_pages = len(self._free)

    def use(self, digest: str, step_id: int) -> list[int]:
        """-> where it is; [] where it is not."""
        kept = self._kept.get(digest)
        if kept is None:
            return []
        kept.used_in = step_id
        self._kept.move_to_end(digest)
        return kept.pages

    def add(self, digest: str, length: int, step_id: int) -> list[int]:
        """Pages for a content that step `step_id` encodes and uses; [] where others that it uses leave too few."""
        count = -(-length // PAGE)
        if not self._make_room(count, step_id):
            return []
        pages, self._free = self._free[:count], self._free[count:]
        self._kept[digest] = Kept(pages, step_id)
        return pages

    def drop(self, step_id: int, added: Collection[int]) -> None:
        """The step is not carried out: it uses nothing, and what was added for it is not there. added: first pages"""
        for digest, kept in list(self._kept.items()):
            if kept.pages[0] in added:
                self._free += kept.pages
                del self._kept[digest]
            elif kept.used_in == step_id:
                kept.used_in = 0

    def _make_room(self, count: int, step_id: int) -> bool:
        idle = [(digest, kept) for digest, kept in self._kept.items() if kept.used_in != step_id]
        if len(self._free) + sum(len(kept.pages) for _, kept in idle) < count:
            return False
        for digest, kept in idle:
            if len(self._free) >= count:
                break
            self._free += kept.pages
            del self._kept[digest]
        return True

    def forget(self, payload: None = None) -> None:
        """Everything, between steps: what a step in flight uses is computed before what the next one writes."""
        for kept in self._kept.values():
            self._free += kept.pages
        self._kept.clear()

"""What towers have to compute before a plan's first forward, and which of its tokens get what they made."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from cadence.core.contract.step import IntArray


@dataclass(frozen=True, slots=True)
class MediaWork:
    """One item. Its vectors are kept in `pages` of the encoder cache, in this order."""

    kind: str
    values_np: npt.NDArray[Any]
    grid: tuple[int, ...]
    length: int
    pages: list[int]


@dataclass(frozen=True, slots=True)
class MediaRun:
    """Some of a row's tokens of this plan, which get vectors in place of their own."""

    row: int
    at: int  # tokens of the row that come before them in the plan
    count: int
    first: int  # vector of the item that the first of them gets
    pages: list[int]  # where the item's vectors are
    both_ways: bool = False  # tokens of the run see each other; the run is all of the item
    beyond: int = 0  # of the tokens, those after the plan's last, which a head that drafts looks at: 0 or 1


@dataclass(frozen=True, slots=True)
class MediaStep:
    works: list[MediaWork] = field(default_factory=list)  # in order: a page may be written twice
    runs: list[MediaRun] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class RopeRow:
    """Of a row that begins."""

    segments_np: IntArray  # [n, 5], as `MediaInput` has them


PAGE = 16  # vectors of a page


def page_entries(pages: list[int], page_size: int, first: int, count: int) -> npt.NDArray[np.int64]:
    """Where vectors [first, first + count) of an item are in the cache."""
    at_np = np.arange(first, first + count, dtype=np.int64)
    return np.asarray(pages, dtype=np.int64)[at_np // page_size] * page_size + at_np % page_size
